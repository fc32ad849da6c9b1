package fleet_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/fakecloud"
)

const pair = `
name: chat
balancer: {auth: {keys_from: env:KEYS}}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}]
regions:
  - {name: aws/us-east-1, replicas: {min: 1, max: 1}}
  - {name: gcp/us-central1, replicas: {min: 1, max: 1}}
`

// chapter is one thing that an operator does, and how both clouds look afterwards.
type chapter struct {
	name  string
	do    func(ctx context.Context, p provision.Provider) error
	calls int
	left  []string
}

// life is a service that comes up, grows, shrinks and goes.
func life(t *testing.T) []*chapter {
	upTo := func(text string) func(context.Context, provision.Provider) error {
		spec := parse(t, text)
		return func(ctx context.Context, p provision.Provider) error {
			f := newFleet(spec, p)
			plan, err := f.Plan(ctx)
			if err == nil {
				_, err = f.Up(ctx, plan, nil)
			}
			return err
		}
	}
	return []*chapter{
		{name: "up", do: upTo(pair)},
		{name: "growing", do: upTo(strings.ReplaceAll(pair, "{min: 1, max: 1}", "{min: 2, max: 2}"))},
		{name: "less", do: upTo(strings.ReplaceAll(pair, "{min: 1, max: 1}", "{min: 0, max: 1}"))},
		{name: "down", do: func(ctx context.Context, p provision.Provider) error { return fleet.Down(ctx, p, "chat", "me", nil) }},
	}
}

// death ends a program at its kth call, which is carried out (Lost) or is not (Refused):
// nothing that it still sends arrives.
type death struct {
	at      int // 0 = it lives
	outcome fakecloud.Outcome
	end     context.CancelFunc
	calls   int
}

func (d *death) decide(fakecloud.Call) fakecloud.Outcome {
	d.calls++
	switch {
	case d.at == 0 || d.calls < d.at:
		return fakecloud.Served
	case d.calls == d.at:
		d.end()
		return d.outcome
	}
	return fakecloud.Refused
}

// A program that ends at any call of anything that it does in two clouds at once,
// whether the call was carried out or not, leaves them so that the same again comes
// to the same end: nothing is missing, nothing is left over, nothing is there twice.
func TestACrashAtAnyCallToTwoCloudsIsMendedByRunningItAgain(t *testing.T) {
	withoutSettings(t)
	spec, whole := parse(t, pair), life(t)
	most := relive(t, spec, whole, 0, fakecloud.Served)
	for _, outcome := range []fakecloud.Outcome{fakecloud.Lost, fakecloud.Refused} {
		for at := 1; at <= most; at++ {
			relive(t, spec, whole, at, outcome)
		}
	}
	for _, c := range whole {
		t.Logf("%s: %d calls, then there are %d objects", c.name, c.calls, len(c.left))
	}
}

// relive goes through a life in which every chapter crashes at one of its calls and is
// begun again. With at 0 nothing crashes, and the chapters are written. It gives the
// most calls of a chapter.
func relive(t *testing.T, spec *service.Spec, chapters []*chapter, at int, outcome fakecloud.Outcome) (most int) {
	t.Helper()
	d := &death{}
	c := emulate(spec, &fakecloud.Faults{Decide: d.decide}, -1)
	for _, this := range chapters {
		ctx, cancel := context.WithCancel(t.Context())
		*d = death{at: at, outcome: outcome, end: cancel}
		err := this.do(ctx, c.open(t))
		cancel()
		calls, crashed := d.calls, at > 0 && d.calls >= at
		*d = death{}
		if crashed {
			err = this.do(t.Context(), c.open(t))
		}
		if err != nil {
			t.Fatalf("%s, with a crash at call %d (outcome %d): %v", this.name, at, outcome, err)
		}
		if at == 0 {
			this.left, this.calls = c.left(), calls
		}
		most = max(most, this.calls)
		if got := c.left(); !slices.Equal(got, this.left) {
			t.Fatalf("%s, with a crash at call %d (outcome %d): got\n%q\nwant\n%q", this.name, at, outcome, got, this.left)
		}
	}
	return most
}
