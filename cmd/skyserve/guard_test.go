package main

import (
	"bytes"
	"errors"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/plan"
)

func TestGuards(t *testing.T) {
	of := func(id, model string, state service.ReplicaState) listedReplica {
		return listedReplica{"local/us", deploy.MachineStatus{ID: id, Model: model, State: state}}
	}
	all := []listedReplica{
		of("us-0", "big", service.StateReady), of("us-1", "big", service.StateReady), of("us-2", "small", service.StateReady),
		of("us-3", "small", service.StateNotReady), of("us-4", "small", service.StateDraining),
	}
	for _, tt := range []struct {
		ids  []string
		want string
	}{
		{[]string{"us-0"}, ""},
		{[]string{"us-0", "us-1"}, "model big has no other ready replica than us-0, us-1"},
		{[]string{"us-2"}, "model small has no other ready replica than us-2"},
		{[]string{"us-0", "us-1", "us-2"}, "model big has no other ready replica than us-0, us-1; model small has no other ready replica than us-2"},
		{[]string{"us-3"}, ""}, // it is not ready, so nothing is taken
		{[]string{"gone"}, ""},
	} {
		if got := lastReady(all, tt.ids); got != tt.want {
			t.Errorf("taking %v: got %q, want %q", tt.ids, got, tt.want)
		}
	}
	remove := func(model string, delta int) plan.Proposal {
		return plan.Proposal{Changes: []plan.ReplicaChange{{Model: model, Region: "local/us", Delta: delta}, {Model: model, Region: "local/eu", Delta: delta}}}
	}
	for _, tt := range []struct {
		p    plan.Proposal
		want string
	}{
		{remove("big", -1), ""},
		{remove("small", 1), ""},
		{remove("small", -1), "the plan removes replicas of model small while us-3 is NOT_READY"},
	} {
		if got := removesWhileDown(tt.p, all); got != tt.want {
			t.Errorf("plan %v: got %q, want %q", tt.p.Changes, got, tt.want)
		}
	}
}

// A command that changes several replicas says which ones it changed before one failed or was declined.
func TestChangeEach(t *testing.T) {
	failure := errors.New("no response")
	for name, c := range map[string]struct {
		err       error
		at        string // the replica with the error
		code      int
		text, out string
	}{
		"all":             {},
		"declined first":  {err: errDeclined, at: "a", code: exitFailed, text: "cancelled; nothing was changed"},
		"declined second": {err: errDeclined, at: "b", code: exitPartial, text: "cancelled; changed before: a; not changed: b, c"},
		"failed":          {err: failure, at: "b", code: exitFailed, text: "no response", out: "b: see the error below; not tried: c\n"},
		"failed last":     {err: failure, at: "c", code: exitFailed, text: "no response"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := changeEach(t.Context(), &out, []string{"a", "b", "c"}, func(id string) error {
				if id == c.at {
					return c.err
				}
				return nil
			})
			text, code := "", 0
			if err != nil {
				text, code = err.Error(), exitFailed
			}
			if coded := new(exitError); errors.As(err, &coded) {
				code = coded.code
			}
			if text != c.text || code != c.code || out.String() != c.out || !errors.Is(err, c.err) {
				t.Errorf("error %q, code %d, output %q", text, code, out.String())
			}
		})
	}
}
