package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const tableHeader = "model,hardware,prompt_size,batch_size,token_size,peak_power,average_power,prompt_time,token_time,e2e_time,tensor_parallel\n"

// benchmarkRow is one run of a grid.
type benchmarkRow struct{ prompt, batch, output int }

// sparseGrid is the usual grid: batches with one length, lengths with one batch.
func sparseGrid() (rows []benchmarkRow) {
	for batch := 1; batch <= 64; batch *= 2 {
		rows = append(rows, benchmarkRow{512, batch, 128})
	}
	for prompt := 128; prompt <= 8192; prompt *= 2 {
		rows = append(rows, benchmarkRow{prompt, 1, 128})
	}
	for output := 256; output <= 1024; output *= 2 {
		rows = append(rows, benchmarkRow{512, 1, output})
	}
	return rows
}

// table formats a benchmark of a profile in one of the two conventions, with repetitions and noise.
func table(p *Profile, totals bool, rows []benchmarkRow, times int, noise func() float64) string {
	var b strings.Builder
	b.WriteString(tableHeader)
	for _, r := range rows {
		for range times {
			prefill := p.prefillTime(r.prompt*r.batch).Seconds() * noise()
			decode := p.decodeTime(r.output-1, r.batch, r.batch*(r.prompt+1)).Seconds() * noise()
			step := decode / float64(r.output-1)
			if totals {
				fmt.Fprintf(&b, "m,h,%d,%d,%d,0,0,%.12g,%.12g,%.12g,8\n", r.prompt, r.batch, r.output, prefill, decode, prefill+decode)
			} else {
				fmt.Fprintf(&b, "m,h,%d,%d,%d,0,0,%.12g,%.12g,%.12g,8\n", r.prompt, r.batch, r.output, 1e3*prefill, 1e3*step, 1e3*(prefill+decode))
			}
		}
	}
	return b.String()
}

func exact() float64 { return 1 }

func fitTable(t *testing.T, text string, o FitOptions) *Fit {
	t.Helper()
	ms, err := ReadMeasurements("perf.csv", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	fits, err := FitMeasurements(ms, o)
	if err != nil || len(fits) != 1 {
		t.Fatalf("%d fits, %v", len(fits), err)
	}
	return &fits[0]
}

// near compares curves knot by knot.
func near(a, b Curve, by time.Duration) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if off := a[i].Time - b[i].Time; a[i].At != b[i].At || off > by || off < -by {
			return false
		}
	}
	return true
}

// The fit recovers the built-in machines from a simulated benchmark.
func TestFitRecoversCurves(t *testing.T) {
	for _, p := range measuredProfiles() {
		f := fitTable(t, table(&p, false, sparseGrid(), 1, exact), FitOptions{Name: "x", KVTokens: 7, ChunkTokens: 4096, MaxRunning: 9, ReservePerMille: 11})
		got := f.Profile
		if !near(got.Prefill, p.Prefill, time.Microsecond) || !near(got.Decode, p.Decode, 2*time.Microsecond) || (got.DecodePerKVToken-p.DecodePerKVToken).Abs() > time.Nanosecond {
			t.Errorf("%s: a benchmark of\n%v\n%v %s\nis fitted by\n%v\n%v %s", p.Name, p.Prefill, p.Decode, p.DecodePerKVToken, got.Prefill, got.Decode, got.DecodePerKVToken)
		}
		if got.Name != "x" || got.KVTokens != 7 || got.ChunkTokens != 4096 || got.MaxRunning != 9 || got.ReservePerMille != 11 {
			t.Errorf("options differ from the requested ones: %+v", got)
		}
		if f.Runs != len(sparseGrid())-1 || f.Repeated != 1 { // only 512 is in both halves
			t.Errorf("%d runs, %d repeated", f.Runs, f.Repeated)
		}
	}
}

// Both conventions yield the same profile; the second one lacks the prefill of batches.
func TestTableConventionsAreDetected(t *testing.T) {
	p := measuredProfiles()[1]
	a := fitTable(t, table(&p, false, sparseGrid(), 1, exact), FitOptions{})
	b := fitTable(t, table(&p, true, sparseGrid(), 1, exact), FitOptions{})
	if !near(a.Profile.Decode, b.Profile.Decode, time.Microsecond) || a.Profile.DecodePerKVToken != b.Profile.DecodePerKVToken {
		t.Errorf("by token\n%v %s\nin totals\n%v %s", a.Profile.Decode, a.Profile.DecodePerKVToken, b.Profile.Decode, b.Profile.DecodePerKVToken)
	}
	if single := a.Profile.Prefill[:7]; !near(b.Profile.Prefill, single, time.Microsecond) {
		t.Errorf("prefills of one prompt are\n%v\nwant\n%v", b.Profile.Prefill, single)
	}
	if a.Profile.Name != "h-m-tp8" || a.Profile.KVTokens != 64*(512+128) || a.Profile.ChunkTokens != 2048 || a.Profile.MaxRunning != 256 || a.Profile.ReservePerMille != 200 {
		t.Errorf("defaults are %+v", a.Profile)
	}
}

// The errors show the noise of 2 % per run, and not more.
func TestHeldOutErrorsShowTheNoise(t *testing.T) {
	p := measuredProfiles()[2]
	rng := rand.New(rand.NewPCG(1, 1))
	f := fitTable(t, table(&p, false, sparseGrid(), 10, func() float64 { return 1 + 0.02*rng.NormFloat64() }), FitOptions{})
	const mean = 0.02 * 0.8 // of the absolute values of a normal one
	for _, e := range []Errors{f.Repetitions.Prefill, f.Repetitions.Decode} {
		if e.Mean < mean*0.8 || e.Mean > mean*1.5 || e.N != f.Runs {
			t.Errorf("errors are %+v, want a mean of about %.3f", e, mean)
		}
	}
	for _, e := range []Errors{f.Noise.Prefill, f.Noise.Decode} {
		if e.Mean < mean*0.8 || e.Mean > mean*1.3 || e.N != f.Runs {
			t.Errorf("the noise is %+v, want a mean of about %.3f", e, mean)
		}
	}
	// Whole points are interpolated: single prompts between their neighbours.
	if e := f.Points; e.Prefill.N != 11 || e.PrefillInChunk.N != 6 || e.Decode.N != 15 || e.Whole.N != 14 || e.Prefill.Mean < f.Repetitions.Prefill.Mean {
		t.Errorf("whole points: %+v", e)
	}
	exactly := fitTable(t, table(&p, false, sparseGrid(), 2, exact), FitOptions{})
	if e := exactly.Repetitions; e.Prefill.N != 0 || exactly.Repeated != exactly.Runs+2 {
		t.Errorf("rows that repeat others to the last digit are held out against themselves: %+v, %d repeated", e, exactly.Repeated)
	}
}

// The order of the rows does not affect the profile.
func TestRowsInAnyOrderFitTheSame(t *testing.T) {
	p := measuredProfiles()[0]
	rng := rand.New(rand.NewPCG(3, 1))
	text := table(&p, false, sparseGrid(), 3, func() float64 { return 1 + 0.05*rng.NormFloat64() })
	want := fitTable(t, text, FitOptions{}).Profile
	rows := strings.Split(strings.TrimSpace(strings.TrimPrefix(text, tableHeader)), "\n")
	for range 5 {
		rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		if got := fitTable(t, tableHeader+strings.Join(rows, "\n"), FitOptions{}).Profile; !reflect.DeepEqual(got, want) {
			t.Fatalf("rows in another order yield\n%+v\nnot\n%+v", got, want)
		}
	}
}

// A batch computed in parts is excluded; responses that ended early count with their actual steps.
func TestIncompleteRuns(t *testing.T) {
	p := measuredProfiles()[0]
	text := table(&p, false, sparseGrid(), 1, exact)
	waited := text + "m,h,512,128,128,0,0,800,67,160000,8\n"
	f := fitTable(t, waited, FitOptions{})
	if f.Waited != 1 || f.Profile.Decode[len(f.Profile.Decode)-1].At != 64 {
		t.Errorf("%d waited; the curve is %v", f.Waited, f.Profile.Decode)
	}
	ms, err := ReadMeasurements("x", strings.NewReader(tableHeader+"m,h,512,1,4096,0,0,100,50,5100,8\nm,h,512,1,1,0,0,100,0,100,8\n"))
	if err != nil || ms[0].Steps != 100 || ms[0].Waited || ms[1].Steps != 0 || ms[1].StepTime != 0 {
		t.Errorf("read %+v, %v", ms, err)
	}
}

// Each combination of model, hardware and tensor parallelism has its own profile, in order.
func TestOneProfilePerMachine(t *testing.T) {
	p := measuredProfiles()[0]
	rows := strings.TrimPrefix(table(&p, false, sparseGrid(), 1, exact), tableHeader)
	text := tableHeader + strings.ReplaceAll(rows, "m,h,", "B/x y,GPU_1,") + rows + strings.ReplaceAll(rows, ",8\n", ",4\n")
	ms, err := ReadMeasurements("x", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	fits, err := FitMeasurements(ms, FitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range fits {
		names = append(names, fits[i].Profile.Name)
	}
	if got := strings.Join(names, " "); got != "gpu-1-b-x-y-tp8 h-m-tp4 h-m-tp8" {
		t.Errorf("profiles are %s", got)
	}
}

func TestInsufficientMeasurements(t *testing.T) {
	for rows, want := range map[string]string{
		"m,h,512,1,128,0,0,100,50,6450,8\n":                                                "fitting m on h, tensor parallel 8: must contain prefills of at least 2 sizes (prompt_size x batch_size), got only 512",
		"m,h,512,1,128,0,0,100,50,6450,8\nm,h,1024,1,128,0,0,200,50,6550,8\n":              "fitting m on h, tensor parallel 8: must contain decodes of at least 2 batch sizes, got only 1",
		"m,h,512,2,128,0,0,100,50,99999,8\nm,h,1024,1,128,0,0,200,50,99999,8\n":            "fitting m on h, tensor parallel 8: must contain prefills of at least 2 sizes (prompt_size x batch_size), got none",
		"m,h,9,1,9,0,0,1,1,9,8\nm,h,9000,1,9,0,0,9,9000,72009,8\nm,h,9,2,9,0,0,2,3,26,8\n": "decode times increase too steeply with the context",
	} {
		ms, err := ReadMeasurements("x", strings.NewReader(tableHeader+rows))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := FitMeasurements(ms, FitOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", rows, err, want)
		}
	}
	if fits, err := FitMeasurements(nil, FitOptions{}); len(fits) != 0 || err != nil {
		t.Errorf("without rows: %v, %v", fits, err)
	}
}

func TestTableErrors(t *testing.T) {
	const good = "m,h,512,1,128,0,0,100,50,6450,8\n"
	for _, c := range []struct{ text, want string }{
		{"", "reading perf.csv: the table is empty: must have the columns model,hardware,"},
		{tableHeader, "reading perf.csv: the table has no measurements"},
		{"model,hardware\n", `reading perf.csv:1: column "prompt_size" is missing: must have model,hardware,prompt_size,`},
		{"model," + tableHeader, `reading perf.csv:1: duplicate column "model"`},
		{tableHeader + good + "m,h,512,1\n", "reading perf.csv: record on line 3: wrong number of fields"},
		{tableHeader + "m,\"h,1\n", "reading perf.csv: "},
		{tableHeader + good + strings.Replace(good, "m,h", " ,h", 1), "reading perf.csv:3: model: must not be empty"},
		{tableHeader + good + strings.Replace(good, "512,1,", "512,x,", 1), `reading perf.csv:3: batch_size: must be an integer from 1 to 10000000, got "x"`},
		{tableHeader + strings.Replace(good, "512,1,", "512,0,", 1), `reading perf.csv:2: batch_size: must be an integer from 1 to 10000000, got "0"`},
		{tableHeader + strings.Replace(good, "512,1,", "-512,1,", 1), `reading perf.csv:2: prompt_size: must be an integer from 1 to 10000000, got "-512"`},
		{tableHeader + strings.Replace(good, "512,1,", "512.5,1,", 1), `reading perf.csv:2: prompt_size: must be an integer from 1 to 10000000, got "512.5"`},
		{tableHeader + strings.Replace(good, "512,1,", "99999,99999,", 1), "reading perf.csv:2: batch_size: must be at most 10000000 tokens in a batch, got 99999 prompts of 99999"},
		{tableHeader + strings.Replace(good, ",8\n", ",\n", 1), `reading perf.csv:2: tensor_parallel: must be an integer from 1 to 10000000, got ""`},
		{tableHeader + strings.Replace(good, "100,", "NaN,", 1), `reading perf.csv:2: prompt_time: must be a time greater than 0 and at most a day, got "NaN"`},
		{tableHeader + strings.Replace(good, "100,", "Inf,", 1), `reading perf.csv:2: prompt_time: must be a time greater than 0 and at most a day, got "Inf"`},
		{tableHeader + strings.Replace(good, ",50,", ",0,", 1), `reading perf.csv:2: token_time: must be a time greater than 0 and at most a day, got "0"`},
		{tableHeader + strings.Replace(good, ",50,", ",-50,", 1), `reading perf.csv:2: token_time: must be a time greater than 0 and at most a day, got "-50"`},
		{tableHeader + strings.Replace(good, ",50,", ",1e-30,", 1), "reading perf.csv:2: token_time: must be at least a nanosecond per token, got 1e-30"},
		{tableHeader + strings.Replace(good, "6450", "99", 1), "reading perf.csv:2: e2e_time: must be at least prompt_time, 100, got 99"},
		{tableHeader + strings.Replace(good, "128", "2", 1), "reading perf.csv: no row has a token_size of 3 or more, so it is unknown whether token_time is per token or the total"},
	} {
		got, err := ReadMeasurements("perf.csv", strings.NewReader(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: got %v, %v, want %s", c.text, got, err, c.want)
		}
	}
	rows, err := ReadMeasurements("x", strings.NewReader("\ufeffTensor_Parallel, model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,e2e_time\n8,m,h,512,1,128,100,50,6450\n"))
	if err != nil || len(rows) != 1 || rows[0].TensorParallel != 8 || rows[0].PrefillTime != 100*ms || rows[0].Line != 2 {
		t.Errorf("columns in another order, with a byte order mark: %+v, %v", rows, err)
	}
}

// The rising curve equals the min-max formula of isotonic regression.
func TestRisingMatchesReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var points []point
		for range rapid.IntRange(1, 12).Draw(t, "points") {
			points = append(points, point{float64(rapid.IntRange(1, 8).Draw(t, "x")), float64(rapid.IntRange(1, 20).Draw(t, "y")), float64(rapid.IntRange(1, 3).Draw(t, "weight"))})
		}
		sums, weights := [9]float64{}, [9]float64{}
		for _, p := range points {
			sums[int(p.x)] += p.y * p.weight
			weights[int(p.x)] += p.weight
		}
		for _, got := range nonDecreasing(points) {
			x := int(got.x)
			want := math.Inf(-1)
			for from := 1; from <= x; from++ {
				lowest := math.Inf(1)
				for to := x; to <= 8; to++ {
					sum, weight := 0.0, 0.0
					for i := from; i <= to; i++ {
						sum, weight = sum+sums[i], weight+weights[i]
					}
					lowest = min(lowest, sum/weight)
				}
				want = max(want, lowest)
			}
			if math.Abs(got.y-want) > 1e-9 {
				t.Fatalf("at %d: %g, want %g", x, got.y, want)
			}
		}
	})
}

func FuzzReadMeasurements(f *testing.F) {
	p := measuredProfiles()[0]
	f.Add(table(&p, false, sparseGrid(), 1, exact))
	f.Add(table(&p, true, sparseGrid(), 1, exact))
	f.Add(tableHeader + "m,h,512,1,128,0,0,1e300,50,6450,8\n")
	f.Fuzz(func(t *testing.T, text string) {
		ms, err := ReadMeasurements("x", strings.NewReader(text))
		if err != nil {
			return
		}
		fits, err := FitMeasurements(ms, FitOptions{})
		if err != nil {
			return
		}
		for i := range fits {
			if err := fits[i].Profile.Validate(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
