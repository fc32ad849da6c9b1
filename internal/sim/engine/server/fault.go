package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Faults configures fault injection. As text it is a list of entries:
//
//	die-after=20s          stops after 20 s of wall time; 0 = at once
//	die-after=100          stops when the 100th generation request arrives
//	hang-after=20s|100     accepts requests but does not respond from then on,
//	                       except to /fault; running responses stop
//	slow=3                 slows the engine by a factor of three
//	error-rate=0.1         a tenth of the generation requests, drawn with the
//	                       seed, fail with status 500
//	reset-after-tokens=5   resets the connection after five tokens of a response
//
// and as JSON an object with the same keys and values: {"slow":3, "die-after":"20s"}. The zero value
// means no faults.
type Faults struct {
	DieAfter         Trigger
	HangAfter        Trigger
	Slow             float64 // factor, at least 1; 0 is 1
	ErrorRate        float64 // 0..1
	ResetAfterTokens int     // 0 is never
}

// Trigger is the start of a fault: after some wall time, or at a number of generation requests. The
// zero value is never.
type Trigger struct {
	Set      bool
	After    time.Duration
	Requests int // used if above 0
}

// String returns the text form of the trigger.
func (t Trigger) String() string {
	if t.Requests > 0 {
		return strconv.Itoa(t.Requests)
	}
	return t.After.String()
}

// faultWords maps each name to the parser of its value.
var faultWords = map[string]func(*Faults, string) error{
	"die-after":  func(f *Faults, v string) (err error) { f.DieAfter, err = parseTrigger(v); return },
	"hang-after": func(f *Faults, v string) (err error) { f.HangAfter, err = parseTrigger(v); return },
	"slow":       func(f *Faults, v string) (err error) { f.Slow, err = parseNumber(v, 1, 1e6); return },
	"error-rate": func(f *Faults, v string) (err error) { f.ErrorRate, err = parseNumber(v, 0, 1); return },
	"reset-after-tokens": func(f *Faults, v string) (err error) {
		f.ResetAfterTokens, err = parseCount(v)
		return
	},
}

// ParseFaults parses faults of the form "name=value", several in a string separated by commas. Unknown
// names and values out of range are errors.
func ParseFaults(list []string) (Faults, error) {
	var f Faults
	for _, word := range strings.Split(strings.Join(list, ","), ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		name, value, _ := strings.Cut(word, "=")
		if err := f.setFault(name, value); err != nil {
			return Faults{}, err
		}
	}
	return f, nil
}

func (f *Faults) setFault(name, value string) error {
	read, known := faultWords[name]
	if !known {
		return fmt.Errorf("unknown fault %q: must be one of %s", name, strings.Join(slices.Sorted(maps.Keys(faultWords)), ", "))
	}
	if err := read(f, value); err != nil {
		return fmt.Errorf("parsing fault %s=%s: %w", name, value, err)
	}
	return nil
}

func parseTrigger(v string) (Trigger, error) {
	if n, err := parseCount(v); err == nil {
		return Trigger{Set: true, Requests: n}, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return Trigger{}, fmt.Errorf("must be a duration (20s) or a number of requests (at least 1), got %q", v)
	}
	return Trigger{Set: true, After: d}, nil
}

func parseCount(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("must be an integer of at least 1, got %q", v)
	}
	return n, nil
}

// decimal formats a bound without an exponent.
func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

func parseNumber(v string, low, high float64) (float64, error) {
	x, err := strconv.ParseFloat(v, 64)
	if err != nil || math.IsNaN(x) || x < low || x > high {
		return 0, fmt.Errorf("must be a number from %s to %s, got %q", decimal(low), decimal(high), v)
	}
	return x, nil
}

// UnmarshalJSON decodes the faults from an object.
func (f *Faults) UnmarshalJSON(data []byte) error {
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // keeps the text of numbers
	if err := decoder.Decode(&object); err != nil {
		return fmt.Errorf("reading faults: must be an object of faults: %w", err)
	}
	var read Faults
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if err := read.setFault(name, fmt.Sprint(object[name])); err != nil {
			return err
		}
	}
	*f = read
	return nil
}

// MarshalJSON encodes the faults that are set.
func (f Faults) MarshalJSON() ([]byte, error) {
	object := map[string]any{}
	if f.DieAfter.Set {
		object["die-after"] = f.DieAfter.String()
	}
	if f.HangAfter.Set {
		object["hang-after"] = f.HangAfter.String()
	}
	if f.Slow > 0 {
		object["slow"] = f.Slow
	}
	if f.ErrorRate > 0 {
		object["error-rate"] = f.ErrorRate
	}
	if f.ResetAfterTokens > 0 {
		object["reset-after-tokens"] = f.ResetAfterTokens
	}
	return json.Marshal(object)
}

// slowness returns the factor by which time is slowed.
func (f Faults) slowness() float64 { return max(f.Slow, 1) }

// faultState holds the current faults and their progress.
type faultState struct {
	die  func()                          // stops the server
	pace func(slow float64, frozen bool) // sets the engine's pace

	mu       sync.Mutex
	faults   Faults
	arrived  int // generation requests since the faults were set
	epoch    int // number of set calls, so that a late timer of earlier faults has no effect
	timers   []*time.Timer
	rng      *rand.Rand
	released chan struct{} // closed when the server no longer hangs; nil while it does not hang
}

// errorStream separates the draws of failing requests from other draws.
const errorStream = 0x6661756c74

func newFaultState(seed uint64, die func(), pace func(float64, bool)) *faultState {
	return &faultState{die: die, pace: pace, rng: rand.New(rand.NewPCG(seed, errorStream))}
}

// replaceFaults replaces the current faults. Counts and durations start now.
func (s *faultState) replaceFaults(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopTimers()
	if s.released != nil {
		close(s.released)
		s.released = nil
	}
	s.faults, s.arrived = f, 0
	s.epoch++
	s.pace(f.slowness(), false)
	s.schedule(f.DieAfter, s.die)
	s.schedule(f.HangAfter, s.freeze)
}

// schedule starts the timer of a fault with a duration.
func (s *faultState) schedule(t Trigger, begin func()) {
	if !t.Set || t.Requests > 0 {
		return
	}
	epoch := s.epoch
	s.timers = append(s.timers, time.AfterFunc(t.After, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.epoch == epoch {
			begin()
		}
	}))
}

func (s *faultState) stopTimers() {
	for _, t := range s.timers {
		t.Stop()
	}
	s.timers = nil
}

// stop cancels all timers.
func (s *faultState) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopTimers()
	s.epoch++
}

// current returns the current faults.
func (s *faultState) current() Faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults
}

// freeze makes the server hang.
func (s *faultState) freeze() {
	if s.released == nil {
		s.released = make(chan struct{})
		s.pace(s.faults.slowness(), true)
	}
}

// gate returns a channel that closes when the server stops hanging; nil if it does not hang.
func (s *faultState) gate() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.released
}

// countRequest counts a generation request, starts the faults that it triggers, and returns whether it fails.
func (s *faultState) countRequest() (fails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived++
	if s.due(s.faults.DieAfter) {
		s.die()
	}
	if s.due(s.faults.HangAfter) {
		s.freeze()
	}
	return s.faults.ErrorRate > 0 && s.rng.Float64() < s.faults.ErrorRate
}

func (s *faultState) due(t Trigger) bool { return t.Requests > 0 && s.arrived >= t.Requests }
