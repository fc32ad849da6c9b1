package eval

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"skyserve/internal/sim/engine"
)

// CalibrateOptions choose what to fit, and say what measurements do not.
type CalibrateOptions struct {
	// Model, Hardware and TensorParallel choose among the measurements of a table;
	// empty or 0 = all. Of a record, Model chooses where it has several.
	Model          string
	Hardware       string
	TensorParallel int
	// Fit is what measurements do not say of a profile. The default name of a
	// record's is recorded- and its model.
	Fit engine.FitOptions
	// Speed is how many times faster than real the engines of a record ran, as
	// simulated ones may; 0 = 1.
	Speed float64
}

// Calibration is profiles fitted to measurements, and how far off they are from
// those that were held out.
type Calibration struct {
	Source  string             `json:"source"` // the file's name
	Format  CalibrationFormat  `json:"format"`
	Engines []CalibratedEngine `json:"engines"`
	// Assumed is what the source does not tell, in words.
	Assumed []string `json:"assumed"`
}

// CalibrationFormat says what profiles were fitted to.
type CalibrationFormat string

// The formats.
const (
	CalibratedTable  CalibrationFormat = "measurements" // a CSV of a benchmark's runs
	CalibratedRecord CalibrationFormat = "record"       // of skyserve lb --record
)

// CalibratedEngine is one fitted profile, in the terms of engine.Profile.
type CalibratedEngine struct {
	Profile engine.Profile `json:"-"`

	Name             string           `json:"name"`
	Description      string           `json:"description"`
	PrefillBase      float64          `json:"prefill_base_ms"`
	PrefillPerToken  float64          `json:"prefill_per_token_ms"`
	PrefillCurve     []CalibratedKnot `json:"prefill_curve"` // null where the two before it hold
	DecodeBase       float64          `json:"decode_base_ms"`
	DecodePerRequest float64          `json:"decode_per_request_ms"`
	DecodeCurve      []CalibratedKnot `json:"decode_curve"` // likewise
	DecodePerKVToken float64          `json:"decode_per_kv_token_ms"`
	ChunkTokens      int              `json:"chunk_tokens"`
	KVTokens         int              `json:"kv_tokens"`
	MaxRunning       int              `json:"max_running"`
	Reserve          float64          `json:"reserve"`

	Runs     int                `json:"runs"`     // measurements or requests that were fitted to
	Repeated int                `json:"repeated"` // rows that repeat another to the last digit, left out
	Waited   int                `json:"waited"`   // batches that were not computed together, left out
	Errors   []CalibrationError `json:"errors"`
}

// CalibratedKnot is one knot of a curve.
type CalibratedKnot struct {
	At     int     `json:"at"` // tokens of a prefill step, requests of a decode step
	Millis float64 `json:"ms"`
}

// CalibrationError sums up absolute relative errors of predictions of what was
// held out: 0.03 is 3 %.
type CalibrationError struct {
	HeldOut string  `json:"held_out"`
	Of      string  `json:"of"` // what was predicted
	N       int     `json:"n"`
	Mean    float64 `json:"mean"`
	Median  float64 `json:"median"`
}

// Calibrate fits profiles to a table of measurements or to a balancer's record,
// plain or compressed with gzip; the first line tells which. name is what errors
// call it. A source that does not tell all of a profile is an error that says what
// it lacks.
func Calibrate(ctx context.Context, name string, in io.Reader, o CalibrateOptions) (*Calibration, error) {
	text, err := unpack(name, in)
	if err != nil {
		return nil, err
	}
	first, err := text.Peek(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(first) == 1 && first[0] == '{' {
		return calibrateRecord(ctx, name, text, o)
	}
	return calibrateTable(name, text, o)
}

// unpack reads through gzip where the text is packed.
func unpack(name string, in io.Reader) (*bufio.Reader, error) {
	text := bufio.NewReaderSize(in, 64<<10)
	if magic, err := text.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		plain, err := gzip.NewReader(text)
		if err != nil {
			return nil, fmt.Errorf("reading %s: unpacking it with gzip: %w", name, err)
		}
		text = bufio.NewReaderSize(plain, 64<<10)
	}
	return text, nil
}

// calibrateTable fits to a table of measurements.
func calibrateTable(name string, in io.Reader, o CalibrateOptions) (*Calibration, error) {
	if o.Speed != 0 && o.Speed != 1 {
		return nil, fmt.Errorf("reading %s: a table of measurements has no speed: it is told of a record only", name)
	}
	all, err := engine.ReadMeasurements(name, in)
	if err != nil {
		return nil, err
	}
	var chosen []engine.Measurement
	for i := range all {
		if o.chooses(&all[i]) {
			chosen = append(chosen, all[i])
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("reading %s: no measurement is of %s: there are those of %s", name, o.chosen(), strings.Join(machines(all), "; "))
	}
	if found := machines(chosen); o.Fit.Name != "" && len(found) > 1 {
		return nil, fmt.Errorf("naming a profile %q: there are %d: %s: choose one with --model, --hardware and --tensor-parallel", o.Fit.Name, len(found), strings.Join(found, "; "))
	}
	fits, err := engine.FitMeasurements(chosen, o.Fit)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	c := &Calibration{Source: name, Format: CalibratedTable}
	for i := range fits {
		c.Engines = append(c.Engines, tableEngine(&fits[i]))
	}
	if o.Fit.KVTokens == 0 {
		c.Assumed = append(c.Assumed, "the KV memory holds what the measured batches took at most: a table does not say more (--kv)")
	}
	return c, nil
}

func (o *CalibrateOptions) chooses(m *engine.Measurement) bool {
	return (o.Model == "" || strings.EqualFold(o.Model, m.Model)) &&
		(o.Hardware == "" || strings.EqualFold(o.Hardware, m.Hardware)) &&
		(o.TensorParallel == 0 || o.TensorParallel == m.TensorParallel)
}

// chosen says what was asked for.
func (o *CalibrateOptions) chosen() string {
	var parts []string
	if o.Model != "" {
		parts = append(parts, "model "+o.Model)
	}
	if o.Hardware != "" {
		parts = append(parts, "hardware "+o.Hardware)
	}
	if o.TensorParallel != 0 {
		parts = append(parts, fmt.Sprintf("tensor parallel %d", o.TensorParallel))
	}
	return strings.Join(parts, ", ")
}

// machines lists what measurements were made on, in the order they come.
func machines(ms []engine.Measurement) (names []string) {
	seen := map[string]bool{}
	for i := range ms {
		if name := ms[i].Machine(); !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// tableEngine is what a fit to a table tells.
func tableEngine(f *engine.Fit) CalibratedEngine {
	e := calibratedEngine(&f.Profile)
	e.Runs, e.Repeated, e.Waited = f.Runs, f.Repeated, f.Waited
	for _, held := range []struct {
		name   string
		errors engine.FitErrors
	}{{"one run in five", f.Repetitions}, {"whole points", f.Points}, {"(noise)", f.Noise}} {
		for _, of := range []struct {
			name   string
			errors engine.Errors
		}{
			{"prefill", held.errors.Prefill},
			{"prefill in a chunk", held.errors.PrefillInChunk},
			{"decode step", held.errors.Decode},
			{"whole run", held.errors.Whole},
		} {
			e.Errors = append(e.Errors, CalibrationError{held.name, of.name, of.errors.N, of.errors.Mean, of.errors.Median})
		}
	}
	return e
}

func calibratedEngine(p *engine.Profile) CalibratedEngine {
	return CalibratedEngine{
		Profile: *p, Name: p.Name, Description: p.Description,
		PrefillBase: toMillis(p.PrefillBase), PrefillPerToken: toMillis(p.PrefillPerToken), PrefillCurve: calibratedKnots(p.Prefill),
		DecodeBase: toMillis(p.DecodeBase), DecodePerRequest: toMillis(p.DecodePerRequest), DecodeCurve: calibratedKnots(p.Decode),
		DecodePerKVToken: toMillis(p.DecodePerKVToken),
		ChunkTokens:      p.ChunkTokens, KVTokens: p.KVTokens, MaxRunning: p.MaxRunning, Reserve: float64(p.ReservePerMille) / 1000,
	}
}

func calibratedKnots(c engine.Curve) (knots []CalibratedKnot) {
	for _, k := range c {
		knots = append(knots, CalibratedKnot{k.At, toMillis(k.Time)})
	}
	return knots
}

func toMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// calibrateRecord fits to a balancer's record.
func calibrateRecord(ctx context.Context, name string, in io.Reader, o CalibrateOptions) (*Calibration, error) {
	if o.Hardware != "" || o.TensorParallel != 0 {
		return nil, fmt.Errorf("reading %s: a record does not say what hardware its replicas have: it can be chosen by model only", name)
	}
	r, err := openRecord(name, in)
	if err != nil {
		return nil, err
	}
	s, err := readStays(ctx, r)
	if err != nil {
		return nil, err
	}
	model, all, err := s.ofModel(o.Model)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	scaleStays(all, cmp.Or(o.Speed, 1))
	defaults := engine.DefaultFitOptions()
	p := engine.Profile{
		Name:            cmp.Or(o.Fit.Name, engine.SafeName("recorded-"+model)),
		ChunkTokens:     cmp.Or(o.Fit.ChunkTokens, defaults.ChunkTokens),
		MaxRunning:      cmp.Or(o.Fit.MaxRunning, defaults.MaxRunning),
		ReservePerMille: cmp.Or(o.Fit.ReservePerMille, defaults.ReservePerMille),
	}
	f, err := fitStays(all, p.ChunkTokens)
	if err != nil {
		return nil, fmt.Errorf("reading %s: fitting %s: %w", name, model, err)
	}
	f.profile(&p, cmp.Or(o.Fit.KVTokens, int(math.Ceil(f.most))))
	p.Description = fmt.Sprintf("%s as balancer %s recorded it, fitted to %d requests", model, r.header.Self.ID, f.used)
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	e := calibratedEngine(&p)
	e.Runs = f.used
	e.Errors = []CalibrationError{sumUp("first token", f.ttft), sumUp("decode step", f.tpot)}
	c := &Calibration{Source: name, Format: CalibratedRecord, Engines: []CalibratedEngine{e}}
	c.Assumed = s.assumed(f, &o, &p)
	return c, nil
}

func sumUp(of string, errors []float64) CalibrationError {
	return CalibrationError{"one request in five", of, len(errors), mean(errors), medianOf(errors)}
}

// profile writes the timing as a profile's constants: what a step takes in
// microseconds, what is many times in it in nanoseconds.
func (f *recordFit) profile(p *engine.Profile, kv int) {
	d := func(s float64, unit time.Duration) time.Duration {
		return time.Duration(math.Round(s/unit.Seconds())) * unit
	}
	p.PrefillBase, p.PrefillPerToken = d(f.prefillBase, time.Microsecond), d(f.prefillPerToken, time.Nanosecond)
	p.DecodeBase, p.DecodePerRequest = d(f.decodeBase, time.Microsecond), d(f.decodePerRequest, time.Nanosecond)
	p.DecodePerKVToken, p.KVTokens = d(f.decodePerKV, time.Nanosecond), kv
}

// foreignShare is how much of what the replicas reported may come from elsewhere
// before it is said that it does: what is on its way makes up a little.
const foreignShare = 0.1

// assumed says in words what the record does not tell.
func (s *stays) assumed(f *recordFit, o *CalibrateOptions, p *engine.Profile) []string {
	var said []string
	if o.Fit.KVTokens == 0 {
		said = append(said, "the KV memory holds the most context that ran at once at a replica: a record does not say more (--kv)")
	}
	said = append(said, fmt.Sprintf("a prefill step takes at most %d tokens (--chunk)", p.ChunkTokens))
	if s.seen > 0 && s.foreign > foreignShare*s.seen {
		said = append(said, fmt.Sprintf("the replicas reported %.0f %% more requests than this balancer had sent: others use them too, and what those cost is counted as the engine's own", 100*s.foreign/(s.seen-s.foreign)))
	}
	if waited := f.held - len(f.ttft); waited > 0 {
		said = append(said, fmt.Sprintf("%d of the %d requests held out waited for room in the engine's memory: first tokens are checked without them", waited, f.held))
	}
	if s.uncounted > 0 {
		said = append(said, fmt.Sprintf("%d answers without the engine's token counts count as load only", s.uncounted))
	}
	if s.failed > 0 {
		said = append(said, fmt.Sprintf("%d requests that failed, were cancelled or had not ended count as load only", s.failed))
	}
	if f.overhead > 0 {
		said = append(said, fmt.Sprintf("a first token takes %.1f ms beside its prefill, on the wire and in the balancer: the profile leaves them out", 1000*f.overhead))
	}
	return said
}
