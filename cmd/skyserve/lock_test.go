package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"skyserve/internal/testkit"
	"skyserve/provision/local"
)

// While a command waits for a person, another one can change the service: the first then changes nothing.
func TestConfirmationsDoNotHoldLock(t *testing.T) {
	const changed = "chat changed while the confirmation was pending; the confirmed change was not made"
	const text = "name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: local/us}]\n"
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, svc local.Service)
		reply     string
		err       string
	}{
		"nothing changes":                    {reply: "y\n"},
		"declined":                           {reply: "n\n", err: "cancelled; nothing was changed"},
		"another command launches a machine": {func(t *testing.T, svc local.Service) { writeObject(t, svc.Dir(), "objects/us-0.json") }, "y\n", changed},
		"another command deploys a file": {func(t *testing.T, svc local.Service) {
			if err := svc.StoreSpec([]byte(text + "# changed")); err != nil {
				t.Error(err)
			}
		}, "y\n", changed},
		"another command drains a replica": {func(t *testing.T, svc local.Service) {
			if err := os.WriteFile(decisionsFile(svc), []byte("{}"), 0o600); err != nil {
				t.Error(err)
			}
		}, "y\n", changed},
		"another command deletes the service": {func(t *testing.T, svc local.Service) {
			if err := svc.Remove(); err != nil {
				t.Error(err)
			}
		}, "y\n", changed},
	} {
		t.Run(name, func(t *testing.T) {
			svc := storedService(t, text)
			in := personWhile(t, svc, c.reply, c.meanwhile)
			s, unlock, err := openScaling(t.Context(), "chat", in, io.Discard, false, cloudFlags{})
			if err != nil {
				t.Fatal(err)
			}
			defer unlock()
			err = confirmAction(s.in, io.Discard, "")
			if got := errorText(err); got != c.err || in.before != nil {
				t.Errorf("got %q, want %q; prompted: %t", got, c.err, in.before == nil)
			}
			if err != nil {
				return
			}
			if again, err := svc.Lock(); err == nil {
				again()
				t.Error("the lock is not held after the confirmation")
			}
		})
	}
}

// personWhile returns a person who does something while another command changes the service, and then replies.
func personWhile(t *testing.T, svc local.Service, reply string, meanwhile func(*testing.T, local.Service)) *person {
	return &person{reply: reply, before: func() {
		unlock, err := svc.Lock()
		if err != nil {
			t.Errorf("another command while this one waits for a person: %v", err)
			return
		}
		defer unlock()
		if meanwhile != nil {
			meanwhile(t, svc)
		}
	}}
}

// While up waits for the confirmation of billed changes, another up can deploy the service: the first launches nothing.
func TestUpConfirmsWithoutLock(t *testing.T) {
	testkit.Slow(t)
	e := emulate(t)
	for _, pair := range append(e.environment(), "KEYS=key-of-a-client") {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	svc := storedService(t, "")
	in := personWhile(t, svc, "y\n", func(t *testing.T, svc local.Service) {
		if err := svc.StoreSpec([]byte(cloudService)); err != nil {
			t.Error(err)
		}
	})
	args := e.upOf(cloudService)
	o := &upOptions{file: args[1], programURL: args[3], clouds: cloudFlags{endpointAWS: e.url, endpointGCP: e.google}, output: outputFlags{output: "text"}}
	var errOut bytes.Buffer
	err := runUp(t.Context(), o, in, io.Discard, &errOut)
	if got := errorText(err); !strings.Contains(got, "chat changed while the confirmation was pending") || in.before != nil || e.RunningAgents() != 0 {
		t.Errorf("got %q; prompted: %t; %d machines run\n%s", got, in.before == nil, e.RunningAgents(), &errOut)
	}
}
