package main

import (
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// `up` records the digest of an image, keeps it when the tag is moved, and reads it again on request. An image that
// does not exist is an error before anything is launched; a registry that does not answer is a warning.
func TestUpRecordsDigests(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	image := strings.TrimPrefix(server.URL, "http://") + "/mine:v1"
	push := func() string {
		t.Helper()
		ref, err := name.ParseReference(image)
		if err != nil {
			t.Fatal(err)
		}
		made, err := random.Image(16, 1)
		if err == nil {
			err = remote.Write(ref, made)
		}
		if err != nil {
			t.Fatal(err)
		}
		digest, err := made.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return image + "@" + digest.String()
	}
	e := emulate(t)
	of := func(image string) string {
		return "name: chat\nmodels: [{name: m, engine: {kind: openai, image: '" + image + "'}, gpus: [{type: L4}]}]\n" +
			"regions: [{name: aws/us-east-1, replicas: {min: 0, max: 1}}]\nbalancer: {insecure: true, auth: {keys_from: 'env:KEYS'}}\n"
	}
	shows := func(out, want string) {
		t.Helper()
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out := e.skyserve(exitUsage, append(e.upOf(of(image)), "--yes")...)
	shows(out, "models[0].engine.image: "+image+": "+strings.TrimPrefix(server.URL, "http://")+": the registry does not have it (HTTP 404); correct the name, or push the image")
	if n := e.RunningAgents(); n != 0 {
		t.Errorf("%d machines were launched", n)
	}
	var o doctorOptions
	spec, err := service.Parse("service.yaml", []byte(of(image)))
	if err != nil {
		t.Fatal(err)
	}
	finding := func(want provision.CheckResult) {
		t.Helper()
		if got, err := o.findImages(t.Context(), spec, nil); err != nil || len(got) != 1 || got[0].OK != want.OK || !strings.Contains(got[0].Message, want.Message) {
			t.Errorf("doctor finds %+v (%v), want %+v", got, err, want)
		}
	}
	finding(provision.CheckResult{Message: image + ": "})
	first := push()
	finding(provision.CheckResult{OK: true, Message: first + " exists"})
	out = e.skyserve(exitOK, append(e.upOf(of(image)), "--yes")...)
	shows(out, "image of m: "+first+" (pinned by digest)")
	second := push()
	for _, tt := range []struct {
		flags []string
		want  string
	}{
		{nil, first},
		{[]string{"--resolve-image", "never"}, first},
		{[]string{"--resolve-image", "always"}, second},
	} {
		shows(e.skyserve(exitOK, append(append(e.upOf(of(image)), "--dry-run"), tt.flags...)...), "image of m: "+tt.want+" (pinned by digest)")
	}
	shows(e.skyserve(exitOK, e.at("status", "chat")...), "image of m: "+first+" (pinned by digest)")
	shows(e.skyserve(exitUsage, append(e.upOf(of(image)), "--dry-run", "--resolve-image", "sometimes")...), `--resolve-image: must be one of changed, always, never, got "sometimes"`)
	out = e.skyserve(exitOK, append(e.upOf(of("127.0.0.1:1/mine:v1")), "--dry-run")...)
	shows(out, "service.yaml: warning: models[0].engine.image: cannot read the digest of 127.0.0.1:1/mine:v1: ")
	shows(out, "image of m: 127.0.0.1:1/mine:v1 (by tag, may change)")
	e.downAndCheckEmpty()
}
