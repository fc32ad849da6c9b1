package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Measurement is one run of a benchmark on one machine: a batch of prompts of
// one length computed together, and answers of one length decoded together.
type Measurement struct {
	Line           int // of its file
	Model          string
	Hardware       string
	TensorParallel int

	PromptTokens int // of each prompt
	Batch        int // prompts
	OutputTokens int // of each answer, the first one included

	PrefillTime time.Duration // of the whole batch, in one step; 0 where it is not known
	StepTime    time.Duration // of a decode step, the mean over Steps; 0 where there was none
	Steps       int           // decode steps: answers may have ended early

	// Waited: the run took longer than its decode steps together, so the batch
	// was not computed together. It does not tell how long a step takes.
	Waited bool
}

// Machine names what the run was made on.
func (m *Measurement) Machine() string {
	return fmt.Sprintf("%s on %s, tensor parallel %d", m.Model, m.Hardware, m.TensorParallel)
}

// context is the mean of the tokens that a decode step of the run attends to.
func (m *Measurement) context() float64 {
	return float64(m.Batch) * (float64(m.PromptTokens) + 1 + float64(m.Steps-1)/2)
}

// FitOptions is what measurements do not say of a profile. What is zero gets the
// default of DefaultFitOptions.
type FitOptions struct {
	Name string // default: of the hardware, the model and the tensor parallelism
	// KVTokens is what the KV memory holds; default: the most that the
	// measurements held at once, which it can do at least.
	KVTokens        int
	ChunkTokens     int
	MaxRunning      int
	ReservePerMille int
}

// DefaultFitOptions are chunks of 2048 tokens (the prompts that Splitwise batches:
// beyond them a step gains nothing), 256 requests at once (vLLM's and SGLang's
// usual max_num_seqs) and a new-token ratio of 0.2, as the built-in profiles have it.
func DefaultFitOptions() FitOptions {
	return FitOptions{ChunkTokens: 2048, MaxRunning: 256, ReservePerMille: 200}
}

// Fit is a profile fitted to measurements, and how well it does on measurements
// that it had not seen.
type Fit struct {
	Profile Profile

	Runs     int // measurements that were used
	Repeated int // rows that another row repeats to the last digit, left out
	Waited   int // measurements of batches that were not computed together, left out

	// Repetitions tells of one run in five of each point held out in turn, as
	// SageServe checks its performance model (80:20); Points, of whole points of the
	// grid held out in turn, those within the range of the others: interpolation.
	// Noise is how far each run is from its repetitions, which no model predicts.
	Repetitions, Points, Noise FitErrors
}

// FitErrors are how far predictions are from what was held out: the prefill,
// those prefills that the profile can meet (steps of up to ChunkTokens), a decode
// step, and the whole run.
type FitErrors struct {
	Prefill, PrefillInChunk, Decode, Whole Errors
}

// Errors sums up absolute relative errors: 0.03 is 3 %.
type Errors struct {
	N      int
	Mean   float64
	Median float64
}

// FitMeasurements fits one profile a model, hardware and tensor parallelism, in
// the order of these, to measurements. Repetitions are joined by their median. The
// prefill curve is over the tokens of the batch and the decode curve over its
// requests, with a slope for each token of context. Measurements that do not tell
// how long one of the kinds of step takes are an error that says what is missing.
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

// byMachine groups measurements by what they were made on.
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
	p.KVTokens = cmp.Or(o.KVTokens, mostHeld(used))
	p.Description = fmt.Sprintf("%s, %d KV tokens, fitted to %d measurements", group[0].Machine(), p.KVTokens, f.Runs)
	f.Repetitions = heldOutRuns(used, p.ChunkTokens)
	f.Points = heldOutPoints(used, p.ChunkTokens)
	f.Noise = repetitionNoise(used, p.ChunkTokens)
	return f, p.Validate()
}

// usable leaves out what tells nothing more, and what tells nothing of a step.
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

// mostHeld is the most KV tokens that a run held at once.
func mostHeld(ms []Measurement) int {
	most := 0
	for i := range ms {
		most = max(most, ms[i].Batch*(ms[i].PromptTokens+ms[i].Steps+1))
	}
	return most
}

// profileName is a100-80gb-llama2-70b-tp8 for llama2-70b on a100-80gb with 8.
func profileName(m *Measurement) string {
	return SafeName(fmt.Sprintf("%s-%s-tp%d", m.Hardware, m.Model, m.TensorParallel))
}

// SafeName makes a name of small letters, digits, dots and dashes, as it can stand
// in a list of names: whatever else a text has becomes a dash.
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
