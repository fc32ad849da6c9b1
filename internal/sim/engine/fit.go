package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Measurement is one run of a benchmark on one machine: a batch of prompts of equal length prefilled
// together, and responses of equal length decoded together.
type Measurement struct {
	Line           int // of its file
	Model          string
	Hardware       string
	TensorParallel int

	PromptTokens int // per prompt
	Batch        int // number of prompts
	OutputTokens int // per response, including the first token

	PrefillTime time.Duration // of the whole batch, in one step; 0 = unknown
	StepTime    time.Duration // mean time of a decode step over Steps; 0 = none
	Steps       int           // decode steps; responses may end early

	// Waited: the run took longer than its decode steps, so the batch was not computed together, and
	// does not determine the time of a step.
	Waited bool
}

// Machine describes the machine of the run.
func (m *Measurement) Machine() string {
	return fmt.Sprintf("%s on %s, tensor parallel %d", m.Model, m.Hardware, m.TensorParallel)
}

// context returns the mean context tokens of a decode step of the run.
func (m *Measurement) context() float64 {
	return float64(m.Batch) * (float64(m.PromptTokens) + 1 + float64(m.Steps-1)/2)
}

// FitOptions are the profile values that measurements lack. Zero values select DefaultFitOptions.
type FitOptions struct {
	Name string // default: from the hardware, the model and the tensor parallelism
	// KVTokens is the size of the KV memory; default: the maximum that a measurement held
	// at once, a lower bound.
	KVTokens        int
	ChunkTokens     int
	MaxRunning      int
	ReservePerMille int
}

// DefaultFitOptions returns chunks of 2048 tokens (Splitwise's batch of prompts: larger steps gain
// nothing), 256 concurrent requests (the usual max_num_seqs of vLLM and SGLang) and a new-token ratio
// of 0.2, as in the built-in profiles.
func DefaultFitOptions() FitOptions {
	return FitOptions{ChunkTokens: 2048, MaxRunning: 256, ReservePerMille: 200}
}

// Fit is a profile fitted to measurements, with its errors on held-out measurements.
type Fit struct {
	Profile Profile

	Runs     int // measurements used
	Repeated int // omitted rows that repeat another row exactly
	Waited   int // omitted measurements of batches that were not computed together

	// Repetitions are the errors of predictions for one run in five of each point of the grid, from the other
	// runs, as SageServe checks its performance model (80:20). Points are the errors of predictions for a whole
	// point from the other points, if it is within their range (interpolation). Noise is the deviation of runs
	// from their repetitions, which no model predicts.
	Repetitions, Points, Noise FitErrors
}

// FitErrors are the errors of predictions for held-out data: of prefills, of prefills within
// ChunkTokens, of decode steps, and of whole runs.
type FitErrors struct {
	Prefill, PrefillInChunk, Decode, Whole Errors
}

// Errors summarises absolute relative errors: 0.03 is 3 %.
type Errors struct {
	N      int
	Mean   float64
	Median float64
}

// FitMeasurements fits one profile per model, hardware and tensor parallelism, in that order.
// Repetitions are aggregated by their median. The prefill curve is over the tokens of the batch and the
// decode curve over its requests, with a slope per token of context. Measurements that do not determine
// the time of a kind of step are an error that lists the missing ones.
func FitMeasurements(ms []Measurement, o FitOptions) ([]Fit, error) {
	var fits []Fit
	for _, group := range byMachine(ms) {
		f, err := fitMachine(group, o)
		if err != nil {
			return nil, fmt.Errorf("fitting %s: %w", group[0].Machine(), err)
		}
		fits = append(fits, *f)
	}
	return fits, nil
}

// byMachine groups measurements by machine.
func byMachine(ms []Measurement) [][]Measurement {
	ms = slices.Clone(ms)
	order := func(a, b Measurement) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Hardware, b.Hardware), cmp.Compare(a.TensorParallel, b.TensorParallel))
	}
	slices.SortStableFunc(ms, order)
	var groups [][]Measurement
	for i, m := range ms {
		if i == 0 || order(ms[i-1], m) != 0 {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], m)
	}
	return groups
}

// fitMachine fits the profile of one machine.
func fitMachine(group []Measurement, o FitOptions) (*Fit, error) {
	defaults := DefaultFitOptions()
	f := &Fit{Profile: Profile{
		Name:            cmp.Or(o.Name, profileName(&group[0])),
		ChunkTokens:     cmp.Or(o.ChunkTokens, defaults.ChunkTokens),
		MaxRunning:      cmp.Or(o.MaxRunning, defaults.MaxRunning),
		ReservePerMille: cmp.Or(o.ReservePerMille, defaults.ReservePerMille),
	}}
	used := f.usable(group)
	m, err := fitModel(used)
	if err != nil {
		return nil, err
	}
	f.Runs = len(used)
	p := &f.Profile
	p.Prefill, p.Decode, p.DecodePerKVToken = m.curves()
	p.KVTokens = cmp.Or(o.KVTokens, maxHeld(used))
	p.Description = fmt.Sprintf("%s, %d KV tokens, fitted to %d measurements", group[0].Machine(), p.KVTokens, f.Runs)
	f.Repetitions = heldOutRuns(used, p.ChunkTokens)
	f.Points = heldOutPoints(used, p.ChunkTokens)
	f.Noise = repetitionNoise(used, p.ChunkTokens)
	return f, p.Validate()
}

// usable removes duplicates and measurements without step times.
func (f *Fit) usable(group []Measurement) []Measurement {
	var used []Measurement
	seen := map[Measurement]bool{}
	for _, m := range group {
		line := m.Line
		m.Line = 0
		switch {
		case seen[m]:
			f.Repeated++
		case m.Waited:
			f.Waited++
		default:
			seen[m] = true
			m.Line = line
			used = append(used, m)
			continue
		}
		seen[m] = true
	}
	return used
}

// maxHeld returns the maximum number of KV tokens that a run held at once.
func maxHeld(ms []Measurement) int {
	highest := 0
	for i := range ms {
		highest = max(highest, ms[i].Batch*(ms[i].PromptTokens+ms[i].Steps+1))
	}
	return highest
}

// profileName returns the default name, such as a100-80gb-llama2-70b-tp8.
func profileName(m *Measurement) string {
	return SafeName(fmt.Sprintf("%s-%s-tp%d", m.Hardware, m.Model, m.TensorParallel))
}

// SafeName converts text to a valid name of lower-case letters, digits, dots and dashes: all other
// characters become dashes.
func SafeName(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '.':
			return c
		case 'A' <= c && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '-'
	}, text)
}
