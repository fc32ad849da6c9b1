package eval

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"skyserve/internal/sim"
	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
)

// benchmarkTable is a small table of two machines: 0.1 ms of prefill per token, and decode steps of 20
// ms plus 1 ms per request.
func benchmarkTable() string {
	var b strings.Builder
	b.WriteString("model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,e2e_time,tensor_parallel\n")
	for _, gpus := range []int{4, 8} {
		for batch := 1; batch <= 16; batch *= 2 {
			for _, prompt := range []int{100, 400, 1000} {
				for run := range 5 {
					prefill, step := 0.1*float64(prompt*batch), 20+float64(batch)
					prefill += 0.001 * float64(run)
					fmt.Fprintf(&b, "Big,gpu,%d,%d,11,%g,%g,%g,%d\n", prompt, batch, prefill, step, prefill+10*step, gpus)
				}
			}
		}
	}
	return b.String()
}

// WriteYAML prints the engines section of a scenario, which parses to the same profiles.
func TestCalibrationYAMLParsesAsScenario(t *testing.T) {
	c := calibrate(t, []byte(benchmarkTable()), CalibrateOptions{Fit: engine.FitOptions{KVTokens: 50_000}})
	if c.Format != CalibratedTable || len(c.Engines) != 2 || c.Engines[0].Name != "gpu-big-tp4" || len(c.Assumed) != 0 {
		t.Fatalf("calibrated %+v", c)
	}
	var yaml bytes.Buffer
	if err := c.WriteYAML(&yaml); err != nil {
		t.Fatal(err)
	}
	yaml.WriteString("workload: arena\nregions: [{name: us, replicas: 2, clients: 3, profiles: [gpu-big-tp4, gpu-big-tp8]}]\n")
	s, err := sim.ParseFile("x.yaml", yaml.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, yaml.String())
	}
	for i := range s.Engines {
		if !reflect.DeepEqual(s.Engines[i], c.Engines[i].Profile) {
			t.Errorf("fitted %+v and read %+v", c.Engines[i].Profile, s.Engines[i])
		}
	}
}

// The JSON output contains the profile's values.
func TestCalibrationJSON(t *testing.T) {
	c := calibrate(t, []byte(benchmarkTable()), CalibrateOptions{TensorParallel: 8, Fit: engine.FitOptions{Name: "ours"}})
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"source":"r.jsonl","format":"measurements","engines":[{"name":"ours","description":"Big on gpu, tensor parallel 8, `,
		`"prefill_base_ms":0,"prefill_per_token_ms":0,"prefill_curve":[{"at":100,"ms":10.002},`,
		`"decode_curve":[{"at":1,"ms":21},{"at":2,"ms":22},`,
		`"decode_per_kv_token_ms":0,"chunk_tokens":2048,"kv_tokens":16176,"max_running":256,"mixed_steps":false,"reserve":0.2,"runs":75,"repeated":0,"waited":0,"errors":[{"held_out":"one run in five","quantity":"prefill","n":75,`,
		`"assumed":["KV memory is the largest measured batch; set the real size with --kv-tokens"]`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("JSON lacks %s:\n%s", want, b)
		}
	}
	var table bytes.Buffer
	if err := c.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PROFILE  FITTED TO  HELD OUT         prefill ", "\nours       75 runs  one run in five  0.0% / 0.0% of 75", "\n                    all of one size ", "\nassumed: KV memory"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
}

func TestCalibrateReadsGzip(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write([]byte(benchmarkTable()))
	w.Close()
	plain, unpacked := calibrate(t, []byte(benchmarkTable()), CalibrateOptions{}), calibrate(t, packed.Bytes(), CalibrateOptions{})
	if !reflect.DeepEqual(plain, unpacked) {
		t.Errorf("compressed yields %+v, plain %+v", unpacked, plain)
	}
}

func TestCalibrateErrors(t *testing.T) {
	for _, c := range []struct {
		name, text string
		o          CalibrateOptions
		want       string
	}{
		{"nothing", "", CalibrateOptions{}, "reading r.jsonl: the table is empty"},
		{"text", "hello\n", CalibrateOptions{}, `reading r.jsonl:1: column "model" is missing`},
		{"broken gzip", "\x1f\x8b\x00", CalibrateOptions{}, "reading r.jsonl: decompressing gzip: "},
		{"other JSON", `{"a":1}`, CalibrateOptions{}, "reading r.jsonl: not a record"},
		{"another machine", benchmarkTable(), CalibrateOptions{Model: "small", Hardware: "tpu", TensorParallel: 2}, "reading r.jsonl: no measurements of model small, hardware tpu, tensor parallel 2, only of Big on gpu, tensor parallel 4; Big on gpu, tensor parallel 8"},
		{"one name for two", benchmarkTable(), CalibrateOptions{Model: "BIG", Fit: engine.FitOptions{Name: "ours"}}, `naming a profile "ours": the table yields 2 profiles (Big on gpu, tensor parallel 4; Big on gpu, tensor parallel 8): select one with --model, --hardware and --tensor-parallel`},
		{"speed", benchmarkTable(), CalibrateOptions{Speed: 10}, "reading r.jsonl: --speed applies only to records, not to tables of measurements"},
	} {
		if got, err := Calibrate(t.Context(), "r.jsonl", strings.NewReader(c.text), c.o); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %+v, %v, want %s", c.name, got, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Calibrate(ctx, "r", bytes.NewReader(recordOf(t, "cost", twoReplicas()...)), CalibrateOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want a cancellation error", err)
	}
}

// solveRelative recovers the unknowns although one equation in ten is far off.
func TestSolveRelativeToleratesOutliers(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	want := []float64{0.05, 0.0002, 0, 3}
	var equations []equation
	for i := range 500 {
		c := []float64{1 + rng.Float64(), 100 * rng.Float64(), rng.Float64(), rng.Float64()}
		value := predict(c, want) * (1 + 0.001*rng.NormFloat64())
		if i%10 == 0 {
			value *= 3
		}
		equations = append(equations, equation{c, value})
	}
	x, lost := solveRelative(equations, len(want))
	if len(lost) > 0 {
		t.Fatalf("lost %v", lost)
	}
	for i := range want {
		if math.Abs(x[i]-want[i]) > 0.01*max(want[i], 0.01) || x[i] < 0 {
			t.Errorf("unknown %d is %g, want %g", i, x[i], want[i])
		}
	}
}

// No unknown is negative: it is set to 0, and the others compensate.
func TestSolveRelativeKeepsUnknownsNonNegative(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	var equations []equation
	for range 100 {
		a, b := 1+rng.Float64(), rng.Float64()
		equations = append(equations, equation{[]float64{a, b}, 2*a - 0.5*b})
	}
	x, lost := solveRelative(equations, 2)
	if len(lost) > 0 || x[1] != 0 || x[0] < 1.5 || x[0] > 2 {
		t.Errorf("unknowns are %v, lost %v", x, lost)
	}
}

// lost names an unknown that no equation contains, or that is collinear with another.
func TestSolveRelativeNamesUndeterminedUnknowns(t *testing.T) {
	var none, twins []equation
	for i := range 20 {
		a := float64(1 + i)
		none = append(none, equation{[]float64{a, 0}, a})
		twins = append(twins, equation{[]float64{a, 3 * a}, 7 * a})
	}
	for name, equations := range map[string][]equation{"none": none, "twins": twins} {
		if x, lost := solveRelative(equations, 2); !reflect.DeepEqual(lost, []int{1}) {
			t.Errorf("%s: solved as %v, lost %v", name, x, lost)
		}
	}
}

// The notes about a fit and a replay, and the table, have the singular for one.
func TestNotesOfOneAreSingular(t *testing.T) {
	f := &recordFit{heldOut: 1}
	s := &attemptLog{uncounted: 1, failed: 1}
	notes := s.assumptions(f, &CalibrateOptions{}, &engine.Profile{ChunkTokens: 512})
	c := Calibration{Engines: []CalibratedEngine{{Name: "e", Repeated: 1, Waited: 1}}}
	var table bytes.Buffer
	if err := c.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	l := newRecordedLoad()
	l.peerReplicas["far"] = map[string]int{"m": 1}
	row := func(tokens int) workload.TraceRow { return workload.TraceRow{InputTokens: tokens, OutputTokens: 7} }
	l.requests = []replayRequest{
		{model: "m", row: row(10), outputKnown: true}, {model: "m", row: row(10)}, {model: "m", row: row(99), outputKnown: true}, {model: "other", row: row(1)},
	}
	scenario := sim.Scenario{MaxContext: 50, Profile: engine.Profile{Name: "small"}}
	l.addRegions(&scenario, &ReplayConstants{}, l.mainModel(&notes), &notes)
	if err := l.addRows(&scenario, "here", "m", &notes); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(notes, "\n") + table.String()
	for _, want := range []string{
		"1 of 1 held-out request waited for KV memory",
		"1 response without token counts from the engine, counted as load only",
		"1 failed, cancelled or unfinished request, counted as load only",
		"e: excluded 1 duplicate row, and 1 batch that did not fit and ran in parts",
		"omitted: 1 request for models other than m",
		"peer far has 1 replica, as it reported",
		"1 request without a recorded response, taken to have the mean output of the others, 7 tokens",
		"omitted: 1 request above the 50 tokens of small",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}
