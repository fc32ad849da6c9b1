package sim

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim/engine"
)

// Every built-in profile round-trips through EnginesYAML, also with mixed steps.
func TestEnginesFileRoundTrip(t *testing.T) {
	mixed := engine.Profiles()[0]
	mixed.MixedSteps = true
	for _, p := range append(engine.Profiles(), mixed) {
		p.Name = "own-" + p.Name
		text := "workload: arena\nprofile: " + p.Name + "\nregions: [{name: us, replicas: 1, clients: 1}]\n" + EnginesYAML([]engine.Profile{p})
		s, err := ParseFile("x.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !reflect.DeepEqual(s.Profile, p) {
			t.Errorf("wrote %+v and read %+v", p, s.Profile)
		}
		again, err := ParseFile("x.yaml", []byte(s.YAML()))
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%s: the scenario's own file reads as %+v, %v", p.Name, again, err)
		}
	}
}

// A curve replaces two constants; the other values of an engine do not change.
func TestCurveReplacesConstants(t *testing.T) {
	const file = `workload: arena
regions: [{name: us, replicas: 1, clients: 1, profiles: [toy]}]
engines:
  - name: toy
    decode_curve: [1=10ms, 8=20ms]
`
	s, err := ParseFile("x.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	p := s.Regions[0].Profiles[0]
	want := engine.Curve{{At: 1, Time: 10 * time.Millisecond}, {At: 8, Time: 20 * time.Millisecond}}
	if !reflect.DeepEqual(p.Decode, want) || p.DecodeBase != 0 || p.DecodePerRequest != 0 || p.Prefill != nil || p.PrefillBase != common.Profile.PrefillBase {
		t.Errorf("read %+v", p)
	}
	for _, c := range []struct{ line, want string }{
		{"decode_curve: [1=10ms, 8=9ms]", "x.yaml:5:19: engines[0].decode_curve: knot 2 (at 8): time must be at least the previous 10ms, got 9ms"},
		{"decode_curve: []", "x.yaml:5:19: engines[0].decode_curve: must have knots such as 128=65.3ms,512=94.3ms, got none"},
		{"decode_curve: [1=10ms, 1=11ms]", "engines[0].decode_curve: knot 2: must be greater than the previous knot 1, got 1"},
		{"decode_curve: 10ms", `engines[0].decode_curve: knot 1: must be SIZE=TIME such as 128=65.3ms, got "10ms"`},
		{"decode_curve: [1=10ms]\n    decode_base: 3ms", "x.yaml:6:18: engines[0].decode_base: conflicts with decode_curve, which sets the step time"},
		{"prefill_per_token: 1ms\n    prefill_curve: [1=10ms]", "x.yaml:5:24: engines[0].prefill_per_token: conflicts with prefill_curve, which sets the step time"},
	} {
		_, err := ParseFile("x.yaml", []byte(strings.Replace(file, "decode_curve: [1=10ms, 8=20ms]", c.line, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.line, err, c.want)
		}
	}
}

// A scenario with a measured profile runs, and its step times follow the curve.
func TestMeasuredMachine(t *testing.T) {
	s := short(t, "fig8a", 20*time.Second)
	if err := s.Set("profile", "h100-llama2-70b"); err != nil {
		t.Fatal(err)
	}
	r := run(t, s, Setup{Policy: "skylb", Push: push(t, "pending"), Layout: Regional, Seed: 1})
	if r.Totals.Completed == 0 {
		t.Errorf("no request completed: %+v", r.Totals)
	}
}
