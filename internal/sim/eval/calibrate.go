package eval

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/sim/engine"
)

// CalibrateOptions select what to fit and supply values that the measurements lack.
type CalibrateOptions struct {
	// Model, Hardware and TensorParallel select measurements of a table; empty or 0 = all. For a record,
	// Model selects one of several models.
	Model          string
	Hardware       string
	TensorParallel int
	// Fit supplies the profile values that the measurements lack. The default name for a record is
	// "recorded-" plus the model.
	Fit engine.FitOptions
	// Speed is the speed-up over real time of the engines in a record, as simulated engines may have; 0
	// = 1.
	Speed float64
}

// Calibration holds profiles fitted to measurements, and their errors on held-out measurements.
type Calibration struct {
	Source  string             `json:"source"` // the file's name
	Format  CalibrationFormat  `json:"format"`
	Engines []CalibratedEngine `json:"engines"`
	// Assumed lists the assumptions made where the source lacks data, as sentences.
	Assumed []string `json:"assumed"`
}

// CalibrationFormat is the kind of source that profiles were fitted to.
type CalibrationFormat string

// The values of CalibrationFormat.
const (
	CalibratedTable  CalibrationFormat = "measurements" // a CSV of benchmark runs
	CalibratedRecord CalibrationFormat = "record"       // written by skyserve lb --record
)

// CalibratedEngine is one fitted profile, in the terms of engine.Profile.
type CalibratedEngine struct {
	Profile engine.Profile `json:"-"`

	Name             string           `json:"name"`
	Description      string           `json:"description"`
	PrefillBase      float64          `json:"prefill_base_ms"`
	PrefillPerToken  float64          `json:"prefill_per_token_ms"`
	PrefillCurve     []CalibratedKnot `json:"prefill_curve"` // null where prefill_base_ms and prefill_per_token_ms apply
	DecodeBase       float64          `json:"decode_base_ms"`
	DecodePerRequest float64          `json:"decode_per_request_ms"`
	DecodeCurve      []CalibratedKnot `json:"decode_curve"` // null where decode_base_ms and decode_per_request_ms apply
	DecodePerKVToken float64          `json:"decode_per_kv_token_ms"`
	ChunkTokens      int              `json:"chunk_tokens"`
	KVTokens         int              `json:"kv_tokens"`
	MaxRunning       int              `json:"max_running"`
	MixedSteps       bool             `json:"mixed_steps"`
	Reserve          float64          `json:"reserve"`

	Runs     int                `json:"runs"`     // measurements or requests used for the fit
	Repeated int                `json:"repeated"` // omitted rows that repeat another row exactly
	Waited   int                `json:"waited"`   // omitted batches that did not fit and were computed in parts
	Errors   []CalibrationError `json:"errors"`
}

// CalibratedKnot is one knot of a curve.
type CalibratedKnot struct {
	At     int     `json:"at"` // tokens of a prefill step, requests of a decode step
	Millis float64 `json:"ms"`
}

// CalibrationError summarises absolute relative errors of predictions for held-out data: 0.03 is 3 %.
type CalibrationError struct {
	HeldOut  string  `json:"held_out"`
	Quantity string  `json:"quantity"` // the predicted quantity
	N        int     `json:"n"`
	Mean     float64 `json:"mean"`
	Median   float64 `json:"median"`
}

// MarshalJSON adds the former key of Quantity.
func (e CalibrationError) MarshalJSON() ([]byte, error) {
	type plain CalibrationError
	return json.Marshal(struct {
		plain
		OldQuantity string `json:"of"`
	}{plain(e), e.Quantity})
}

// Calibrate fits profiles to a table of measurements or to a balancer's record, plain or compressed
// with gzip; it detects the format from the first line. Errors refer to the source as name. A source
// that does not determine all constants of a profile is an error that lists the missing
// data.
func Calibrate(ctx context.Context, name string, in io.Reader, o CalibrateOptions) (*Calibration, error) {
	text, err := decompress(name, in)
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

// decompress decompresses gzip input and returns other input as it is.
func decompress(name string, in io.Reader) (*bufio.Reader, error) {
	text := bufio.NewReaderSize(in, 64<<10)
	if magic, err := text.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		plain, err := gzip.NewReader(text)
		if err != nil {
			return nil, fmt.Errorf("reading %s: decompressing gzip: %w", name, err)
		}
		text = bufio.NewReaderSize(plain, 64<<10)
	}
	return text, nil
}

// calibrateTable fits profiles to a table of measurements.
func calibrateTable(name string, in io.Reader, o CalibrateOptions) (*Calibration, error) {
	if o.Speed != 0 && o.Speed != 1 {
		return nil, fmt.Errorf("reading %s: --speed applies only to records, not to tables of measurements", name)
	}
	all, err := engine.ReadMeasurements(name, in)
	if err != nil {
		return nil, err
	}
	var chosen []engine.Measurement
	for i := range all {
		if o.matches(&all[i]) {
			chosen = append(chosen, all[i])
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("reading %s: no measurements of %s, only of %s", name, o.selection(), strings.Join(machines(all), "; "))
	}
	if found := machines(chosen); o.Fit.Name != "" && len(found) > 1 {
		return nil, fmt.Errorf("naming a profile %q: the table yields %d profiles (%s): select one with --model, --hardware and --tensor-parallel", o.Fit.Name, len(found), strings.Join(found, "; "))
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
		c.Assumed = append(c.Assumed, "KV memory is the largest measured batch; set the real size with --kv-tokens")
	}
	return c, nil
}

func (o *CalibrateOptions) matches(m *engine.Measurement) bool {
	return (o.Model == "" || strings.EqualFold(o.Model, m.Model)) &&
		(o.Hardware == "" || strings.EqualFold(o.Hardware, m.Hardware)) &&
		(o.TensorParallel == 0 || o.TensorParallel == m.TensorParallel)
}

// selection describes the selection for error messages.
func (o *CalibrateOptions) selection() string {
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

// machines lists the machines of the measurements, in order of appearance.
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

// tableEngine reports a fit to a table.
func tableEngine(f *engine.Fit) CalibratedEngine {
	e := calibratedEngine(&f.Profile)
	e.Runs, e.Repeated, e.Waited = f.Runs, f.Repeated, f.Waited
	for _, held := range []struct {
		name   string
		errors engine.FitErrors
	}{{"one run in five", f.Repetitions}, {"all of one size", f.Points}, {"(noise)", f.Noise}} {
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
		ChunkTokens:      p.ChunkTokens, KVTokens: p.KVTokens, MaxRunning: p.MaxRunning, MixedSteps: p.MixedSteps, Reserve: float64(p.ReservePerMille) / 1000,
	}
}

func calibratedKnots(c engine.Curve) (knots []CalibratedKnot) {
	for _, k := range c {
		knots = append(knots, CalibratedKnot{k.At, toMillis(k.Time)})
	}
	return knots
}

func toMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// calibrateRecord fits a profile to a balancer's record.
func calibrateRecord(ctx context.Context, name string, in io.Reader, o CalibrateOptions) (*Calibration, error) {
	if o.Hardware != "" || o.TensorParallel != 0 {
		return nil, fmt.Errorf("reading %s: a record does not contain the hardware of its replicas: select by --model only", name)
	}
	r, err := openRecord(name, in)
	if err != nil {
		return nil, err
	}
	s, err := readAttempts(ctx, r)
	if err != nil {
		return nil, err
	}
	model, all, err := s.selectModel(o.Model)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	scaleAttempts(all, cmp.Or(o.Speed, 1))
	defaults := engine.DefaultFitOptions()
	p := engine.Profile{
		Name:            cmp.Or(o.Fit.Name, engine.SafeName("recorded-"+model)),
		ChunkTokens:     cmp.Or(o.Fit.ChunkTokens, defaults.ChunkTokens),
		MaxRunning:      cmp.Or(o.Fit.MaxRunning, defaults.MaxRunning),
		ReservePerMille: cmp.Or(o.Fit.ReservePerMille, defaults.ReservePerMille),
	}
	f, err := fitAttempts(all, p.ChunkTokens)
	if err != nil {
		return nil, fmt.Errorf("reading %s: fitting %s: %w", name, model, err)
	}
	f.profile(&p, cmp.Or(o.Fit.KVTokens, int(math.Ceil(f.maxContext))))
	p.Description = fmt.Sprintf("%s as balancer %s recorded it, fitted to %s", model, r.header.Self.ID, printable.Count(f.fitted, "request"))
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	e := calibratedEngine(&p)
	e.Runs = f.fitted
	e.Errors = []CalibrationError{summariseErrors("first token", f.ttft), summariseErrors("decode step", f.tpot)}
	c := &Calibration{Source: name, Format: CalibratedRecord, Engines: []CalibratedEngine{e}}
	if c.Assumed = s.assumptions(f, &o, &p); r.truncated {
		c.Assumed = append(c.Assumed, "the record ends in the middle of a line: the fit uses the lines before")
	}
	return c, nil
}

func summariseErrors(of string, errors []float64) CalibrationError {
	return CalibrationError{"one request in five", of, len(errors), mean(errors), medianOf(errors)}
}

// profile writes the timing to a profile's constants: per-step times in microseconds, per-token and
// per-request times in nanoseconds.
func (f *recordFit) profile(p *engine.Profile, kv int) {
	d := func(s float64, unit time.Duration) time.Duration {
		return time.Duration(math.Round(s/unit.Seconds())) * unit
	}
	p.PrefillBase, p.PrefillPerToken = d(f.prefillBase, time.Microsecond), d(f.prefillPerToken, time.Nanosecond)
	p.DecodeBase, p.DecodePerRequest = d(f.decodeBase, time.Microsecond), d(f.decodePerRequest, time.Nanosecond)
	p.DecodePerKVToken, p.KVTokens, p.MixedSteps = d(f.decodePerKV, time.Nanosecond), kv, f.mixed
}

// foreignShare is the share of reported requests from other sources above which the result notes them.
// A small excess comes from requests in transit.
const foreignShare = 0.1

// assumptions lists the assumptions and omissions of a fit, as sentences.
func (s *attemptLog) assumptions(f *recordFit, o *CalibrateOptions, p *engine.Profile) []string {
	var notes []string
	if o.Fit.KVTokens == 0 {
		notes = append(notes, "KV memory is the maximum context that one replica ran at once; set the real size with --kv-tokens")
	}
	notes = append(notes, fmt.Sprintf("a prefill step computes at most %d tokens (--chunk)", p.ChunkTokens))
	notes = append(notes, f.kindNote())
	if s.reported > 0 && s.foreign > foreignShare*s.reported {
		notes = append(notes, fmt.Sprintf("the replicas reported %.0f %% more requests than this balancer sent: other clients use them, and the fit attributes their cost to the engine", 100*s.foreign/(s.reported-s.foreign)))
	}
	if waited := f.heldOut - len(f.ttft); waited > 0 {
		notes = append(notes, fmt.Sprintf("%d of %s waited for KV memory: excluded from the first-token check", waited, printable.Count(f.heldOut, "held-out request")))
	}
	if s.uncounted > 0 {
		notes = append(notes, printable.Count(s.uncounted, "response")+" without token counts from the engine, counted as load only")
	}
	if s.failed > 0 {
		notes = append(notes, printable.Count(s.failed, "failed, cancelled or unfinished request")+", counted as load only")
	}
	if f.overhead > 0 {
		notes = append(notes, fmt.Sprintf("a first token takes %.1f ms besides its prefill, in the network and the balancer: not part of the profile", 1000*f.overhead))
	}
	return notes
}

// kindNote states the kind of engine that was fitted, and how the other kind compares.
func (f *recordFit) kindNote() string {
	kinds := map[bool]string{
		false: "running requests wait for prefill steps",
		true:  "a prefill step also generates a token of each running request",
	}
	note := kinds[f.mixed]
	if f.other != nil && !math.IsNaN(f.ttftError) && !math.IsNaN(f.other.ttftError) {
		note += fmt.Sprintf(": the fit then misses first tokens by %.0f %%, and by %.0f %% if %s", 100*f.ttftError, 100*f.other.ttftError, kinds[f.other.mixed])
	}
	return note
}
