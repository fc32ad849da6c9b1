package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/prefix"
)

// RecordVersion is the format of a record. It grows with every change of what a
// balancer must be made from: an older record would not repeat.
const RecordVersion = 3

// RecordHeader is the first line of a record. It holds all that a core.Balancer
// must be made from to repeat the record's decisions, and no secret.
type RecordHeader struct {
	Record  int          `json:"record"` // RecordVersion
	Started time.Time    `json:"started"`
	Self    RecordSelf   `json:"self"`
	Config  RecordConfig `json:"config"`
}

// RecordSelf names the balancer that wrote a record.
type RecordSelf struct {
	Service string         `json:"service"`
	ID      string         `json:"id"`
	Region  service.Region `json:"region"`
}

// RecordConfig is core.Config in JSON: the policy by its name, the push rule as
// core.ParsePush reads it.
type RecordConfig struct {
	Policy  string       `json:"policy"`
	Push    string       `json:"push"`
	Order   core.Order   `json:"order"`
	Targets core.Targets `json:"targets"`
	// ModelTargets is by model.
	ModelTargets     map[string]core.Targets `json:"model_targets,omitempty"`
	TauN             time.Duration           `json:"tau_n_ns"`
	TauP             time.Duration           `json:"tau_p_ns"`
	Forward          bool                    `json:"forward"`
	Tau              int                     `json:"tau"`
	QueueLimit       int                     `json:"queue_limit"`
	MaxWait          time.Duration           `json:"max_wait_ns"`
	ProbeInterval    time.Duration           `json:"probe_interval_ns"`
	StaleIntervals   int                     `json:"stale_intervals"`
	LostIntervals    int                     `json:"lost_intervals"`
	UnconfirmedLimit int                     `json:"unconfirmed_limit"`
	OutstandingLimit int                     `json:"outstanding_limit"`
	SessionLead      time.Duration           `json:"session_lead_ns"`
	PoolLimit        int                     `json:"pool_limit"`
	BatchInterval    time.Duration           `json:"batch_interval_ns"`
	Deferred         core.DeferredRule       `json:"deferred"`
	MaxTries         int                     `json:"max_tries"`
	PeerPause        time.Duration           `json:"peer_pause_ns"`
	TreeBytes        int                     `json:"tree_bytes"`
	TreeOrder        prefix.Order            `json:"tree_order"`
	ShareBytes       int                     `json:"share_bytes"`
	RetryShare       float64                 `json:"retry_share"`
	RetryBurst       int                     `json:"retry_burst"` // 0 = no bound
	RetryWait        time.Duration           `json:"retry_wait_ns"`
	RetryWaitMost    time.Duration           `json:"retry_wait_most_ns"`
	EjectAfter       int                     `json:"eject_after"` // 0 = never
	EjectTime        time.Duration           `json:"eject_time_ns"`
	EjectMost        time.Duration           `json:"eject_most_ns"`
	EjectShare       float64                 `json:"eject_share"`
	KillAfter        int                     `json:"kill_after"` // 0 = never
	KillWait         time.Duration           `json:"kill_wait_ns"`
	KillMemory       time.Duration           `json:"kill_memory_ns"`
	KillLimit        int                     `json:"kill_limit"`
}

// RecordLine is every other line: one step, a new configuration that holds from
// there on, or a gap where Gap of them could not be written because the disk was
// too slow or full. A record without a gap repeats exactly.
type RecordLine struct {
	T       time.Duration `json:"t"` // core's time in nanoseconds
	Event   *core.Event   `json:"event,omitempty"`
	Config  *RecordConfig `json:"config,omitempty"`
	Actions []core.Action `json:"actions,omitempty"`
	Gap     int64         `json:"gap,omitempty"`
	// Panic is the value of a panic in the step. It ended the process: no line follows.
	Panic string `json:"panic,omitempty"`

	written chan struct{} // closed once the line is in the file; may be nil
}

// header describes this runtime.
func (r *Runtime) header() RecordHeader {
	return RecordHeader{
		Record: RecordVersion, Started: r.began.UTC(),
		Self:   RecordSelf{Service: r.self.Service, ID: r.self.ID, Region: r.self.Region},
		Config: newRecordConfig(&r.coreCfg),
	}
}

// recorder writes steps from one goroutine. Its methods work on nil: no record.
type recorder struct {
	out     *recordWriter
	lines   chan RecordLine
	pending int64 // dropped since the last line; guarded by the runtime's lock
	dropped atomic.Int64
	missed  int64 // lines since the last one that out had no room for
}

// newRecorder makes a recorder and writes its header; nil when w is nil.
func newRecorder(w io.Writer, h RecordHeader, buffer int, log *slog.Logger) *recorder {
	if w == nil {
		return nil
	}
	c := &recorder{out: newRecordWriter(w, log), lines: make(chan RecordLine, buffer)}
	c.out.add(h)
	c.out.flush(false)
	return c
}

// add queues a step.
func (c *recorder) add(now time.Duration, ev core.Event, actions []core.Action) {
	if c != nil {
		c.queue(now, func() RecordLine { return RecordLine{T: now, Event: keepEvent(ev), Actions: slices.Clone(actions)} })
	}
}

// reconfigured queues a new configuration with what it led to.
func (c *recorder) reconfigured(now time.Duration, cfg *core.Config, actions []core.Action) {
	if c != nil {
		config := newRecordConfig(cfg)
		c.queue(now, func() RecordLine { return RecordLine{T: now, Config: &config, Actions: slices.Clone(actions)} })
	}
}

// crashed writes the event whose step panicked. It returns once the line and all before it
// are in the file, which needs run to be running.
func (c *recorder) crashed(now time.Duration, ev core.Event, why string) {
	if c == nil {
		return
	}
	line := RecordLine{T: now, Event: keepEvent(ev), Panic: why, written: make(chan struct{})}
	c.lines <- line
	<-line.written
}

// queue queues a line; the caller holds the runtime's lock, which keeps the lines
// in order. It never waits: what does not fit is counted as a gap.
func (c *recorder) queue(now time.Duration, line func() RecordLine) {
	if c.pending > 0 && len(c.lines) < cap(c.lines)-1 {
		c.lines <- RecordLine{T: now, Gap: c.pending}
		c.pending = 0
	}
	if c.pending == 0 {
		select {
		case c.lines <- line():
			return
		default:
		}
	}
	c.pending++
	c.dropped.Add(1)
}

// keepEvent copies what the caller of a step may change afterwards.
func keepEvent(ev core.Event) *core.Event {
	ev.Request, ev.Outcome = kept(ev.Request), kept(ev.Outcome)
	ev.Replica, ev.Report, ev.Peer = kept(ev.Replica), kept(ev.Report), kept(ev.Peer)
	if ev.PeerReport = kept(ev.PeerReport); ev.PeerReport != nil {
		ev.PeerReport.Models, ev.PeerReport.Killers = slices.Clone(ev.PeerReport.Models), slices.Clone(ev.PeerReport.Killers)
	}
	ev.Learned = slices.Clone(ev.Learned)
	return &ev
}

func kept[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// run writes until ctx ends, then what is queued by then.
func (c *recorder) run(ctx context.Context) {
	defer c.out.flush(false)
	for {
		select {
		case line := <-c.lines:
			c.writeLine(line)
		case <-ctx.Done():
			for {
				select {
				case line := <-c.lines:
					c.writeLine(line)
				default:
					return
				}
			}
		}
	}
}

// writeLine writes a line and, when no other waits, lets it reach the file.
func (c *recorder) writeLine(line RecordLine) {
	c.write(line)
	if len(c.lines) == 0 || line.written != nil {
		c.out.flush(false)
	}
	if line.written != nil {
		close(line.written)
	}
}

// write writes a line, after a gap where lines before it had no room.
func (c *recorder) write(line RecordLine) {
	if c.missed > 0 && c.out.add(RecordLine{T: line.T, Gap: c.missed}) {
		c.missed = 0
	}
	switch {
	case c.missed == 0 && c.out.add(line):
	case line.Gap > 0: // those were counted when they were dropped
		c.missed += line.Gap
	default:
		c.missed++
		c.dropped.Add(1)
	}
}

// finish writes what run left behind: the steps since, and a gap at the very end.
// The caller holds the runtime's lock; run has ended.
func (c *recorder) finish(now time.Duration) {
	if c == nil {
		return
	}
	for len(c.lines) > 0 {
		c.write(<-c.lines)
	}
	c.out.flush(true) // which makes room for the gap
	if c.pending += c.missed; c.pending > 0 {
		c.out.add(RecordLine{T: now, Gap: c.pending})
		c.pending, c.missed = 0, 0
	}
	c.out.flush(true)
}

// failure is why the record lacks its end; nil where it is whole but for its gaps.
func (c *recorder) failure() error {
	if c == nil || c.out.failed == nil {
		return nil
	}
	return fmt.Errorf("writing the record: %w", c.out.failed)
}

// lost is how many steps could not be written.
func (c *recorder) lost() int64 {
	if c == nil {
		return 0
	}
	return c.dropped.Load()
}
