package main

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/agent"
	"skyserve/internal/testkit"
)

// launchLike launches a machine with the same parameters as another, as an attacker with launch
// permission in the account can, and returns its instance id.
func (e *emulated) launchLike(request map[string]string) string {
	e.t.Helper()
	form := url.Values{}
	for key, value := range request {
		if key != "ClientToken" {
			form.Set(key, value)
		}
	}
	before := map[string]bool{}
	for _, m := range e.aws.Machines() {
		before[m.ID] = true
	}
	r, err := http.NewRequest(http.MethodPost, e.url, strings.NewReader(form.Encode()))
	if err != nil {
		e.t.Fatal(err)
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIASOMEBODY/20261001/us-east-1/ec2/aws4_request")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		e.t.Fatalf("launching: %s, %v\n%s", resp.Status, err, text)
	}
	for _, m := range e.aws.Machines() {
		if !before[m.ID] {
			return m.ID
		}
	}
	e.t.Fatal("nothing was launched")
	return ""
}

// requestOf returns the launch request of a machine of the service.
func (e *emulated) requestOf(id string) map[string]string {
	e.t.Helper()
	for _, m := range e.aws.Machines() {
		if m.Tags["skyserve:id"] == id {
			return m.Request
		}
	}
	e.t.Fatalf("no machine with the id %s", id)
	return nil
}

// enrolled reports whether the agent of a machine has received a certificate.
func (e *emulated) enrolled(machine string) bool {
	_, err := os.Stat(filepath.Join(e.dir, machine, "state", agent.FileCert))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.t.Fatal(err)
	}
	return err == nil
}

// A machine with the tags of the controller's machine that no operator launched receives no
// certificate and no configuration. It is reported, and replaced with --replace.
func TestUpRejectsControllerImpostor(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(oneRegion), "--yes")
	e.skyserve(exitOK, up...)
	like, genuine := e.requestOf("lb-us-east-1-0"), e.instance("lb-us-east-1-0")

	// An impostor beside the genuine machine.
	second := e.launchLike(like)
	if out := e.skyserve(exitFailed, up...); !strings.Contains(out, second) || strings.Contains(out, genuine) || !strings.Contains(out, "--replace lb-us-east-1-0") {
		t.Errorf("with two of one id:\n%s", out)
	}
	e.skyserve(exitOK, append(up, "--replace", "lb-us-east-1-0")...)
	if e.instance("lb-us-east-1-0") != genuine {
		t.Error("the genuine machine was replaced, rather than the impostor")
	}

	// An impostor in place of the genuine machine receives nothing either.
	e.aws.TerminateInstance(genuine)
	impostor := e.launchLike(like)
	out := e.skyserve(exitFailed, up...)
	for _, want := range []string{"lb-us-east-1-0", impostor, "not launched by 'skyserve up'", "skyserve up " + up[1] + " --replace lb-us-east-1-0"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the output of up:\n%s", want, out)
		}
	}
	for verb, args := range map[string][]string{"status": {"status", "chat"}, "doctor": {"doctor", up[1]}} {
		code := map[string]int{"status": exitOK, "doctor": exitFailed}[verb]
		if out := e.skyserve(code, e.at(args...)...); !strings.Contains(out, impostor) || !strings.Contains(out, "--replace lb-us-east-1-0") {
			t.Errorf("%s prints neither the machine nor a hint:\n%s", verb, out)
		}
	}
	if e.enrolled(impostor) || e.enrolled(second) {
		t.Error("the impostor received the controller's configuration")
	}
	out = e.skyserve(exitOK, append(up, "--replace", "lb-us-east-1-0")...)
	within(t, "a chat", func() error { return chatAt(endpointIn(out, "us-east-1"), "key-of-a-client") })
	if now := e.instance("lb-us-east-1-0"); now == impostor || !e.enrolled(now) {
		t.Errorf("after the replacement, %s is running", now)
	}

	// Without the record of launches, up identifies machines by their certificates.
	if err := os.Remove(filepath.Join(e.dir, "home", "services", "chat", "balancers.json")); err != nil {
		t.Fatal(err)
	}
	genuine = e.instance("lb-us-east-1-0")
	if out := e.skyserve(exitOK, up...); e.instance("lb-us-east-1-0") != genuine || !strings.Contains(out, "chat: 1 change,") || !strings.Contains(out, "reload: configuration changed") {
		t.Errorf("without the record:\n%s", out)
	}
	if out := e.skyserve(exitOK, up...); !strings.Contains(out, "no change") {
		t.Errorf("with the record that up restored:\n%s", out)
	}
	e.downAndCheckEmpty()
}
