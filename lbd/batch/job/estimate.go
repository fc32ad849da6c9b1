package job

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ModelInput is the part of a batch's input that requests one model.
type ModelInput struct {
	Model    string `json:"model"`
	Requests int    `json:"n"`
	Bytes    int64  `json:"b"` // of the lines
}

// Consumption is what requests used: sums over requests.
type Consumption struct {
	Requests                  int
	Bytes                     int64 // of their lines in the input
	InputTokens, OutputTokens int64
}

func (w *Consumption) add(v Consumption) {
	w.Requests, w.Bytes = w.Requests+v.Requests, w.Bytes+v.Bytes
	w.InputTokens, w.OutputTokens = w.InputTokens+v.InputTokens, w.OutputTokens+v.OutputTokens
}

// tokens returns what a part of an input uses at the ratios of w; false if w is empty.
func (w *Consumption) tokens(requests int, bytes int64) (input, output float64, known bool) {
	if w.Requests == 0 || w.Bytes == 0 {
		return 0, 0, false
	}
	return float64(bytes) * float64(w.InputTokens) / float64(w.Bytes), float64(requests) * float64(w.OutputTokens) / float64(w.Requests), true
}

// Completed returns what the completed requests of a batch used. The bytes of a chunk are divided evenly over
// its requests.
func (r *Record) Completed() (w Consumption) {
	for i := range r.Chunks {
		if c := &r.Chunks[i]; c.Lines > 0 && c.Completed > 0 {
			w.add(Consumption{c.Completed, c.Bytes * int64(c.Completed) / int64(c.Lines), c.InputTokens, c.OutputTokens})
		}
	}
	if b := &r.Batch; b.Status.Final() && b.Usage != nil && b.RequestCounts.Total > 0 {
		_, bytes := r.size()
		done := int64(b.RequestCounts.Completed)
		w = Consumption{b.RequestCounts.Completed, bytes * done / int64(b.RequestCounts.Total), b.Usage.InputTokens, b.Usage.OutputTokens}
	}
	return w
}

// size returns the requests and bytes of the input; zero if unknown.
func (r *Record) size() (requests int, bytes int64) {
	for _, l := range r.Load {
		requests, bytes = requests+l.Requests, bytes+l.Bytes
	}
	return requests, bytes
}

// remaining returns the requests without a result, and the bytes of their lines.
func (r *Record) remaining() (requests int, bytes int64) {
	if r.Batch.Status == Validating {
		return r.size()
	}
	if r.Batch.Status != InProgress {
		return 0, 0
	}
	for i := range r.Chunks {
		if c := &r.Chunks[i]; c.Lines > 0 {
			left := c.Lines - c.Completed - c.Failed
			requests, bytes = requests+left, bytes+c.Bytes*int64(left)/int64(c.Lines)
		}
	}
	return requests, bytes
}

// models returns the requested models as one key. Batches with the same key are compared with each other.
func (r *Record) models() string {
	names := make([]string, len(r.Load))
	for i := range r.Load {
		names[i] = r.Load[i].Model
	}
	return strings.Join(names, "\n")
}

// PastBatch is what a batch that has ended used, and how fast it ran.
type PastBatch struct {
	Consumption
	TokensPerSecond float64 // prompt and output, while it was in progress; 0 = unknown
}

// PastBatches has the batch that ended last for each set of models. The zero value is ready.
type PastBatches struct {
	last  map[string]PastBatch
	ended map[string]int64 // when, in Unix seconds
}

// maxPastBatches bounds PastBatches: names of models are chosen by clients only among those that exist.
const maxPastBatches = 1000

// Observe records a batch that has ended.
func (p *PastBatches) Observe(r *Record) {
	w, key := r.Completed(), r.models()
	end := r.Batch.FinalizingAt
	if end == nil {
		end = r.Batch.CancellingAt
	}
	if w.Requests == 0 || key == "" || end == nil || p.ended[key] > *end || len(p.last) >= maxPastBatches && p.last[key].Requests == 0 {
		return
	}
	batch := PastBatch{Consumption: w}
	if at := r.Batch.InProgressAt; at != nil && *end > *at {
		batch.TokensPerSecond = float64(w.InputTokens+w.OutputTokens) / float64(*end-*at)
	}
	if p.last == nil {
		p.last, p.ended = map[string]PastBatch{}, map[string]int64{}
	}
	p.last[key], p.ended[key] = batch, *end
}

// RateMeter measures the completed requests per second of a batch. The zero value is ready.
type RateMeter struct {
	samples []rateSample // the oldest first
}

type rateSample struct {
	at   time.Time
	done int
}

// Intervals of RateMeter: a rate needs at least rateMin, and covers the last rateWindow.
const (
	rateMin    = 5 * time.Second
	rateWindow = time.Minute
)

// Observe records the number of requests with a result.
func (m *RateMeter) Observe(at time.Time, done int) {
	if n := len(m.samples); n > 0 && at.Sub(m.samples[n-1].at) < rateMin {
		return
	}
	m.samples = append(m.samples, rateSample{at, done})
	for len(m.samples) > 1 && at.Sub(m.samples[1].at) >= rateWindow {
		m.samples = m.samples[1:]
	}
}

// PerSecond returns the rate until now; nil if unknown.
func (m *RateMeter) PerSecond(now time.Time, done int) *float64 {
	from := 0
	for from+1 < len(m.samples) && now.Sub(m.samples[from+1].at) >= rateWindow {
		from++
	}
	if len(m.samples) == 0 || now.Sub(m.samples[from].at) < rateMin {
		return nil
	}
	rate := float64(max(0, done-m.samples[from].done)) / now.Sub(m.samples[from].at).Seconds()
	return &rate
}

// TokenPrice is the price of a model in USD per token.
type TokenPrice struct{ Input, Output float64 }

// Estimate is what a batch is expected to use and when it ends. Nil is unknown.
type Estimate struct {
	Requests                  int // 0 = unknown
	InputTokens, OutputTokens *int64
	CostUSD                   *float64
	FinishAt                  *time.Time
	// Late reports whether FinishAt is after the deadline.
	Late bool
}

// EstimateInput is a batch that has not ended, as EstimateBatches needs it.
type EstimateInput struct {
	Record
	RequestsPerSecond *float64 // nil = unknown
}

// minOwnRequests is the number of completed requests from which a batch is estimated from its own.
const minOwnRequests = 10

// EstimateBatches extrapolates batches that have not ended from completed requests (input tokens per byte, output tokens
// per request): the batch's own, or those of other batches of the same models. A batch ends when it and the
// batches of the same models with earlier deadlines are done, at the current rate of these models or at that of
// the last batch. A batch that waits for a quota goes on when its wait ends. price returns the price of a model; false = unknown.
func EstimateBatches(open []EstimateInput, ended *PastBatches, now time.Time, price func(model string) (TokenPrice, bool)) []Estimate {
	order := make([]int, len(open))
	groups := map[string]*group{}
	for i := range open {
		order[i] = i
		key := open[i].models()
		if groups[key] == nil {
			groups[key] = &group{last: ended.last[key]}
		}
		groups[key].consumed.add(open[i].Completed())
	}
	for i := range open {
		groups[open[i].models()].addRate(&open[i])
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(open[a].Deadline().Compare(open[b].Deadline()), cmp.Compare(open[a].Batch.ID, open[b].Batch.ID))
	})
	all := make([]Estimate, len(open))
	for _, i := range order {
		all[i] = groups[open[i].models()].estimate(&open[i], now, price)
	}
	return all
}

// group are the open batches of the same models.
type group struct {
	consumed Consumption // of the completed requests
	last     PastBatch   // of the batch that ended last
	rate     float64
	ahead    float64 // tokens of batches with an earlier deadline
	// unknown is whether the work of one of them is unknown.
	unknown bool
}

// reference returns the completed requests from which a batch is estimated.
func (g *group) reference(b *EstimateInput) Consumption {
	w := b.Completed()
	if w.Requests < minOwnRequests && g.consumed.Requests > w.Requests {
		w = g.consumed
	}
	if w.Requests < minOwnRequests && g.last.Requests > w.Requests {
		w = g.last.Consumption
	}
	return w
}

// addRate adds the tokens per second of a batch.
func (g *group) addRate(b *EstimateInput) {
	if w := b.Completed(); b.RequestsPerSecond != nil && w.Requests > 0 {
		g.rate += *b.RequestsPerSecond * float64(w.InputTokens+w.OutputTokens) / float64(w.Requests)
	}
}

func (g *group) estimate(b *EstimateInput, now time.Time, price func(string) (TokenPrice, bool)) (e Estimate) {
	e.Requests = b.Batch.RequestCounts.Total
	if b.Batch.Status == Validating {
		e.Requests, _ = b.size()
	}
	ratios, done := g.reference(b), b.Completed()
	left, bytes := b.remaining()
	input, output, known := ratios.tokens(left, bytes)
	if !known || e.Requests == 0 {
		g.unknown = g.unknown || left > 0 || b.Batch.Status == Validating
		return e
	}
	totalInput, totalOutput := float64(done.InputTokens)+input, float64(done.OutputTokens)+output
	in, out := int64(math.Round(totalInput)), int64(math.Round(totalOutput))
	e.InputTokens, e.OutputTokens = &in, &out
	e.CostUSD = b.cost(totalInput, totalOutput, price)
	g.ahead += input + output
	rate := cmp.Or(g.rate, g.last.TokensPerSecond)
	if b.Batch.Status != Validating && b.Batch.Status != InProgress || g.unknown || rate <= 0 {
		return e
	}
	if seconds := g.ahead / rate; seconds < (10 * maxWindow).Seconds() {
		start := now
		if w := b.Wait(now); w != nil {
			start = time.Unix(w.Until, 0)
		}
		at := start.Add(time.Duration(seconds * float64(time.Second)))
		e.FinishAt, e.Late = &at, at.After(b.Deadline())
	}
	return e
}

// cost returns the price of a batch's tokens, which are divided over its models by the bytes of their lines;
// nil if a price is unknown.
func (r *Record) cost(input, output float64, price func(string) (TokenPrice, bool)) *float64 {
	_, bytes := r.size()
	sum := 0.0
	for _, l := range r.Load {
		p, known := price(l.Model)
		if !known || bytes == 0 {
			return nil
		}
		sum += float64(l.Bytes) / float64(bytes) * (input*p.Input + output*p.Output)
	}
	return &sum
}

// HeaderEstimate is the header of an Estimate.
const HeaderEstimate = "X-Skyserve-Estimate"

// Header returns the estimate as a dictionary of RFC 8941, such as "requests=3, input_tokens=60, output_tokens=9,
// cost_usd=0.001, finish_at=1790000000, late". Unknown values are absent, and costs rounded up to a tenth of a
// cent. It is empty if everything is unknown.
func (e *Estimate) Header() string {
	var parts []string
	number := func(key string, value *int64) {
		if value != nil {
			parts = append(parts, key+"="+strconv.FormatInt(*value, 10))
		}
	}
	if n := int64(e.Requests); n > 0 {
		number("requests", &n)
	}
	number("input_tokens", e.InputTokens)
	number("output_tokens", e.OutputTokens)
	if e.CostUSD != nil {
		parts = append(parts, fmt.Sprintf("cost_usd=%.3f", math.Ceil(*e.CostUSD*1000-1e-9)/1000))
	}
	if e.FinishAt != nil {
		at := e.FinishAt.Unix()
		number("finish_at", &at)
	}
	if e.Late {
		parts = append(parts, "late")
	}
	return strings.Join(parts, ", ")
}

// ParseEstimate parses the value of the header; unknown keys are ignored.
func ParseEstimate(header string) (e Estimate, err error) {
	for part := range strings.SplitSeq(header, ",") {
		key, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		var n int64
		var bad error
		switch key {
		case "late":
			e.Late = true
		case "cost_usd":
			var usd float64
			if usd, bad = strconv.ParseFloat(text, 64); bad == nil && !(usd >= 0 && usd < math.MaxInt64) { // NaN, too
				bad = strconv.ErrRange
			}
			e.CostUSD = &usd
		case "requests", "input_tokens", "output_tokens", "finish_at":
			n, bad = strconv.ParseInt(text, 10, 64)
		}
		switch key {
		case "requests":
			e.Requests = int(n)
		case "input_tokens":
			e.InputTokens = &n
		case "output_tokens":
			e.OutputTokens = &n
		case "finish_at":
			at := time.Unix(n, 0)
			e.FinishAt = &at
		}
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("header %s: %s: must be a number, got %q", HeaderEstimate, key, Truncate(text)))
		}
	}
	return e, err
}

// DefaultBytesPerToken is the assumed number of bytes of a line per prompt token while no request of its models
// is completed: as lbd/core estimates prompts.
const DefaultBytesPerToken = 4

// Backlog is the prompt of the requests of a batch that have no result yet, for one model.
type Backlog struct {
	Model       string
	InputTokens float64
}

// BacklogOf returns the backlog of each batch, by model. Tokens are estimated as by EstimateBatches; without a completed
// request of the same models, a token has DefaultBytesPerToken.
func BacklogOf(open []EstimateInput, ended *PastBatches) [][]Backlog {
	work := map[string]Consumption{}
	for i := range open {
		key := open[i].models()
		w := work[key]
		w.add(open[i].Completed())
		work[key] = w
	}
	all := make([][]Backlog, len(open))
	for i := range open {
		b, key := &open[i], open[i].models()
		g := group{consumed: work[key], last: ended.last[key]}
		ratios := g.reference(b)
		left, bytes := b.remaining()
		input, _, known := ratios.tokens(left, bytes)
		if !known {
			input = float64(bytes) / DefaultBytesPerToken
		}
		if _, total := b.size(); total > 0 && left > 0 {
			for _, l := range b.Load {
				all[i] = append(all[i], Backlog{l.Model, input * float64(l.Bytes) / float64(total)})
			}
		}
	}
	return all
}
