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

// launchLike launches a machine with all that another was launched with, as somebody does who
// may launch anything in the account, and returns what EC2 calls it.
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

// requestOf is what a machine of the service was launched with, by its id.
func (e *emulated) requestOf(id string) map[string]string {
	e.t.Helper()
	for _, m := range e.aws.Machines() {
		if m.Tags["skyserve:id"] == id {
			return m.Request
		}
	}
	e.t.Fatalf("no machine is called %s", id)
	return nil
}

// enrolled says whether the agent of a machine was handed a certificate.
func (e *emulated) enrolled(machine string) bool {
	_, err := os.Stat(filepath.Join(e.dir, machine, "state", agent.FileCert))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.t.Fatal(err)
	}
	return err == nil
}

// A machine that carries the tags of the controller's, and that no operator launched, is
// handed nothing, whatever it says of itself: it is named, and replaced when that is asked for.
func TestAnImpostorOfTheControllerIsHandedNothing(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(oneRegion), "--yes")
	e.skyserve(exitOK, up...)
	like, genuine := e.requestOf("lb-us-east-1-0"), e.instance("lb-us-east-1-0")

	// Beside the genuine one it is no better.
	second := e.launchLike(like)
	if out := e.skyserve(exitFailed, up...); !strings.Contains(out, second) || strings.Contains(out, genuine) || !strings.Contains(out, "--replace lb-us-east-1-0") {
		t.Errorf("with two of one id:\n%s", out)
	}
	e.skyserve(exitOK, append(up, "--replace", "lb-us-east-1-0")...)
	if e.instance("lb-us-east-1-0") != genuine {
		t.Error("the genuine machine was replaced, rather than the impostor")
	}

	// In its place it is handed nothing either.
	e.aws.Vanish(genuine)
	impostor := e.launchLike(like)
	out := e.skyserve(exitFailed, up...)
	for _, want := range []string{"lb-us-east-1-0", impostor, "was not launched by 'skyserve up'", "skyserve up " + up[1] + " --replace lb-us-east-1-0"} {
		if !strings.Contains(out, want) {
			t.Errorf("up says nothing of %q:\n%s", want, out)
		}
	}
	for verb, args := range map[string][]string{"status": {"status", "chat"}, "doctor": {"doctor", up[1]}} {
		code := map[string]int{"status": exitOK, "doctor": exitFailed}[verb]
		if out := e.skyserve(code, e.at(args...)...); !strings.Contains(out, impostor) || !strings.Contains(out, "--replace lb-us-east-1-0") {
			t.Errorf("%s does not name it and what to do:\n%s", verb, out)
		}
	}
	if e.enrolled(impostor) || e.enrolled(second) {
		t.Error("it was handed what belongs to the controller")
	}
	out = e.skyserve(exitOK, append(up, "--replace", "lb-us-east-1-0")...)
	within(t, "a chat", func() error { return chatAt(endpointIn(out, "us-east-1"), "key-of-a-client") })
	if now := e.instance("lb-us-east-1-0"); now == impostor || !e.enrolled(now) {
		t.Errorf("after it was replaced, %s runs", now)
	}

	// Who lost the record of what was launched goes by certificates.
	if err := os.Remove(filepath.Join(e.dir, "home", "services", "chat", "balancers.json")); err != nil {
		t.Fatal(err)
	}
	if out := e.skyserve(exitOK, up...); !strings.Contains(out, "no change") {
		t.Errorf("without the record:\n%s", out)
	}
	e.downToNothing()
}
