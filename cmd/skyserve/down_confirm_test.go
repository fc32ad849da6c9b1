package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/provision"
)

// person is a terminal whose user does something before answering.
type person struct {
	before func()
	reply  string
}

func (p *person) IsTerminal() bool { return true }

func (p *person) Read(b []byte) (int, error) {
	if p.before != nil {
		p.before()
		p.before = nil
	}
	n := copy(b, p.reply)
	p.reply = p.reply[n:]
	return n, nil
}

// While down waits for a person, other commands can change the service: down deletes what the person has confirmed, or
// nothing.
func TestDownConfirmsWithoutLock(t *testing.T) {
	const object = "objects/lb-us-0.json"
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, dir string)
		reply     string
		err       string
		remains   []string
	}{
		"nothing changes": {reply: "y\n"},
		"declined":        {reply: "n\n", err: "cancelled; nothing was changed", remains: []string{object}},
		"another command launches a machine": {
			func(t *testing.T, dir string) { writeObject(t, dir, "objects/us-0.json") },
			"y\n", "chat changed while the confirmation was pending; the confirmed change was not made",
			[]string{object, "objects/us-0.json"},
		},
		"another command deletes the service": {
			func(t *testing.T, dir string) {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			},
			"y\n", "chat changed while the confirmation was pending; the confirmed change was not made", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := storedService(t, "")
			dir := svc.Dir()
			writeObject(t, dir, object)
			in := &person{reply: c.reply, before: func() {
				unlock, err := svc.Lock()
				if err != nil {
					t.Errorf("another command while down waits for a person: %v", err)
					return
				}
				if c.meanwhile != nil {
					c.meanwhile(t, dir)
				}
				unlock()
			}}
			var out, errOut bytes.Buffer
			err := runDown(t.Context(), &downOptions{name: "chat", output: outputFlags{output: "text"}}, in, &out, &errOut)
			if got := errorText(err); !strings.Contains(got, c.err) || (err != nil) != (c.err != "") || in.before != nil {
				t.Errorf("got %q, want %q; prompted: %t\n%s", got, c.err, in.before == nil, &errOut)
			}
			for _, o := range []string{object, "objects/us-0.json"} {
				_, err := os.Stat(filepath.Join(dir, o))
				if want := strings.Contains(strings.Join(c.remains, " "), o); (err == nil) != want {
					t.Errorf("%s remains: %t, want %t", o, err == nil, want)
				}
			}
			if _, err := os.Stat(dir); err == nil && len(c.remains) == 0 {
				t.Error("the directory of the service remains")
			}
		})
	}
}

// errorText returns the text of an error; empty for nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// writeObject writes the object file of a balancer or replica whose process has ended.
func writeObject(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Error(err)
	}
	id, kind := strings.TrimSuffix(filepath.Base(name), ".json"), provision.KindReplica
	if provision.IsBalancerID(id) {
		kind = provision.KindBalancer
	}
	text, err := json.Marshal(struct {
		provision.Object
		PID int `json:"pid"`
	}{provision.Object{ID: id, Kind: kind, Region: "local/us"}, 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Error(err)
	}
}
