package workload

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The trace formats with request rates instead of requests (ServeGen): one line per client and time
// window.
const (
	formatRates      = "servegen-rates"
	formatTotalRates = "servegen-total"
)

// rateFormat is a table of rates by its columns.
type rateFormat struct {
	name    string
	columns []string // required columns
	rate    string
}

var rateFormats = []rateFormat{
	{formatRates, []string{"t_s", "rate_rps", "cv"}, "rate_rps"},
	{formatTotalRates, []string{"t_s", "total_rps"}, "total_rps"},
}

const (
	// maxWindows limits a table of rates, which is kept in memory because it is ordered by client, not
	// by time: 4 million windows take 130 MB.
	maxWindows = 4 << 20
	// maxRate limits a client's rate, in requests per second.
	maxRate = 1e6
	// defaultWindow is the window length if the file has no two windows to compare.
	defaultWindow = 600.0
	// minShape limits the burstiness of arrivals: at 0.01 a hundred arrive at once. Fits of windows with
	// few requests yield absurdly small values.
	minShape, maxShape = 0.01, 1e4
)

// window is a client's arrival process during a period: gaps with the given distribution and mean rate.
type window struct {
	start  float64 // seconds
	rate   float64 // requests per second
	gaps   gaps
	length float64 // seconds
}

// openRates reads a table of rates and draws arrivals from it.
func openRates(r *records, f rateFormat, o TraceOptions) (source, error) {
	t := &rateTrace{}
	byName := map[string]*arrivals{}
	err := r.eachWindow(f, func(model, client string, w window) {
		name := strings.Trim(model+"/"+client, "/")
		c := byName[name]
		if c == nil {
			c = &arrivals{name: name, order: len(byName)}
			byName[name] = c
			t.clients = append(t.clients, c)
		}
		c.windows = append(c.windows, w)
	})
	if err != nil {
		return nil, err
	}
	t.begin(o)
	return t, nil
}

// eachWindow reads a table of rates to its end.
func (r *records) eachWindow(f rateFormat, yield func(model, client string, w window)) error {
	for count := 1; ; count++ {
		err := r.read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		w, err := r.window(f)
		if err != nil {
			return err
		}
		if count > maxWindows {
			return fmt.Errorf("reading %s:%d: more than %d windows", r.file, r.line, maxWindows)
		}
		model, _ := r.field("model")
		client, _ := r.field("client")
		yield(model, client, w)
	}
}

// Rate is the mean request rate of a client, or of all clients, in a window of a table of rates.
type Rate struct {
	// Model and Client are empty if the table lacks them.
	Model, Client string
	// Start is the start of the window, in the table's own time.
	Start time.Duration
	// PerSecond is in requests per second.
	PerSecond float64
}

// ReadRates reads a table of rates without drawing requests, unlike OpenTrace; errors refer to it as
// name, like those of OpenTrace. window is the shortest step between two windows of a client. Windows
// without traffic may be missing.
func ReadRates(name string, in io.Reader) (rates []Rate, window time.Duration, err error) {
	text, err := plainText(name, in)
	if err != nil {
		return nil, 0, err
	}
	first, err := firstLine(name, text)
	if err != nil {
		return nil, 0, err
	}
	r, err := newRecords(name, text)
	if err != nil {
		return nil, 0, err
	}
	f := r.rates()
	if f == nil {
		return nil, 0, unknownFormat(name, first, []string{formatRates, formatTotalRates})
	}
	return r.readRates(*f)
}

func (r *records) readRates(f rateFormat) (rates []Rate, length time.Duration, err error) {
	clients := map[[2]string]*arrivals{}
	err = r.eachWindow(f, func(model, client string, w window) {
		c := clients[[2]string{model, client}]
		if c == nil {
			c = &arrivals{}
			clients[[2]string{model, client}] = c
		}
		c.windows = append(c.windows, w)
		rates = append(rates, Rate{Model: model, Client: client, Start: time.Duration(w.start * float64(time.Second)), PerSecond: w.rate})
	})
	seconds := windowLength(slices.Collect(maps.Values(clients)))
	return rates, time.Duration(seconds * float64(time.Second)), err
}

// window parses one line of a table of rates.
func (r *records) window(f rateFormat) (window, error) {
	text, at := r.field("t_s")
	start, err := at.number(text, math.MaxInt32)
	if err != nil {
		return window{}, err
	}
	text, at = r.field(f.rate)
	rate, err := at.number(text, maxRate)
	if err != nil {
		return window{}, err
	}
	g, err := r.gaps()
	return window{start: start, rate: rate, gaps: g}, err
}

// gaps parses the distribution of a window's arrivals. Gamma and Weibull take their shape from p1, or
// Gamma from the coefficient of variation; without a distribution the arrivals are Poisson.
func (r *records) gaps() (gaps, error) {
	dist, at := r.field("dist")
	switch strings.ToLower(dist) {
	case "", "poisson", "exponential", "expon":
		return gaps{gamma: true, shape: 1}, nil
	case "gamma":
		if p1, _ := r.field("p1"); p1 != "" {
			return r.shaped("p1", true, func(x float64) float64 { return x })
		}
		return r.shaped("cv", true, func(cv float64) float64 { return 1 / (cv * cv) })
	case "weibull":
		return r.shaped("p1", false, func(x float64) float64 { return x })
	}
	return gaps{}, at.bad("Poisson, Gamma or Weibull", dist)
}

func (r *records) shaped(column string, gamma bool, shape func(float64) float64) (gaps, error) {
	text, at := r.field(column)
	x, err := at.number(text, 1e9)
	if err != nil {
		return gaps{}, err
	}
	return gaps{gamma: gamma, shape: min(max(shape(x), minShape), maxShape)}, nil
}

// rateTrace draws the arrivals of all clients in order of time. A client's arrivals are a renewal
// process in operational time: gaps have mean 1 and the clock runs at the window's rate, so the
// expected count is the integral of the rate regardless of burstiness. Lengths are drawn from the
// mixtures below.
type rateTrace struct {
	clients []*arrivals // while reading; then a heap by next arrival
	rows    int
}

// begin selects the relevant windows and draws every client's first arrival.
func (t *rateTrace) begin(o TraceOptions) {
	length := windowLength(t.clients)
	from, to := o.From.Seconds(), math.Inf(1)
	if o.To > 0 {
		to = o.To.Seconds()
	}
	live := t.clients[:0]
	for _, c := range t.clients {
		c.selectWindows(from, to, length)
		c.random = stream(keyOf("arrivals/"+c.name, o.Seed))
		if c.start() {
			live = append(live, c)
		}
	}
	t.clients = live
	heap.Init((*arrivalHeap)(&t.clients))
}

func (t *rateTrace) next() (TraceRow, error) {
	if len(t.clients) == 0 {
		return TraceRow{}, io.EOF
	}
	c := t.clients[0]
	t.rows++
	row := TraceRow{
		Number: t.rows, At: time.Duration(c.at * float64(time.Second)), User: c.name,
		InputTokens: drawInput(c.random), OutputTokens: drawOutput(c.random),
	}
	if c.advance(c.windows[c.current].gaps.draw(c.random)) {
		heap.Fix((*arrivalHeap)(&t.clients), 0)
	} else {
		heap.Pop((*arrivalHeap)(&t.clients))
	}
	return row, nil
}

// windowLength returns the shortest step between two windows of one client.
func windowLength(clients []*arrivals) float64 {
	length := math.Inf(1)
	for _, c := range clients {
		slices.SortStableFunc(c.windows, func(a, b window) int { return cmp.Compare(a.start, b.start) })
		for i := 1; i < len(c.windows); i++ {
			if d := c.windows[i].start - c.windows[i-1].start; d > 0 {
				length = min(length, d)
			}
		}
	}
	if math.IsInf(length, 1) {
		return defaultWindow
	}
	return length
}

// arrivals is one client's arrival process.
type arrivals struct {
	name    string
	order   int // breaks ties
	windows []window
	random  *rand.Rand
	current int     // window
	at      float64 // the next arrival, seconds
}

// selectWindows removes the windows outside from..to and sets the length of the others.
func (c *arrivals) selectWindows(from, to, length float64) {
	kept := c.windows[:0]
	for _, w := range c.windows {
		w.length = length
		if w.rate > 0 && w.start < to && w.start+length > from {
			kept = append(kept, w)
		}
	}
	c.windows = kept
}

// start draws the first arrival of a process in steady state.
func (c *arrivals) start() bool {
	if len(c.windows) == 0 {
		return false
	}
	c.at = c.windows[0].start
	return c.advance(c.windows[0].gaps.first(c.random))
}

// advance moves the next arrival by a gap in operational time; it returns false if the windows end
// first.
func (c *arrivals) advance(gap float64) bool {
	for c.current < len(c.windows) {
		w := c.windows[c.current]
		c.at = max(c.at, w.start)
		if remaining := (w.start + w.length - c.at) * w.rate; gap >= remaining {
			gap -= max(remaining, 0)
			c.current++
			continue
		}
		c.at += gap / w.rate
		return true
	}
	return false
}

// gaps is a distribution of gaps with mean 1: Gamma or Weibull with a shape; Gamma with shape 1 is
// exponential, for Poisson arrivals.
type gaps struct {
	gamma bool
	shape float64
}

func (g gaps) draw(r *rand.Rand) float64 {
	switch {
	case g.gamma && g.shape == 1:
		return r.ExpFloat64()
	case g.gamma:
		return drawGamma(r, g.shape) / g.shape
	}
	return math.Exp(math.Log(r.ExpFloat64())/g.shape - g.logMean())
}

// first draws the wait from an arbitrary time to the next arrival: a uniform part of a gap drawn in
// proportion to its length.
func (g gaps) first(r *rand.Rand) float64 {
	if g.gamma {
		return r.Float64() * drawGamma(r, g.shape+1) / g.shape
	}
	return r.Float64() * math.Exp(math.Log(drawGamma(r, 1+1/g.shape))/g.shape-g.logMean())
}

// logMean returns the logarithm of the mean of a Weibull distribution with scale 1.
func (g gaps) logMean() float64 {
	l, _ := math.Lgamma(1 + 1/g.shape)
	return l
}

// drawGamma draws from the Gamma distribution with scale 1 (Marsaglia and Tsang 2000; below shape 1
// with their boost).
func drawGamma(r *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return drawGamma(r, shape+1) * math.Exp(-r.ExpFloat64()/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-r.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// The lengths of requests for which only the rate is known: two mixtures from a production mix of short
// and long prompts.
func drawInput(r *rand.Rand) int {
	if r.Float64() < 0.75 {
		return logNormal{300, 1.2}.draw(r, 4, 16000)
	}
	return logNormal{900, 0.8}.draw(r, 4, 16000)
}

func drawOutput(r *rand.Rand) int {
	if r.Float64() < 0.25 {
		return logNormal{20, 0.8}.draw(r, 1, 4096)
	}
	return logNormal{250, 0.75}.draw(r, 1, 4096)
}

// arrivalHeap is a heap of clients by next arrival.
type arrivalHeap []*arrivals

func (h arrivalHeap) Len() int { return len(h) }
func (h arrivalHeap) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].order < h[j].order
}
func (h arrivalHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *arrivalHeap) Push(x any)   { *h = append(*h, x.(*arrivals)) }
func (h *arrivalHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
