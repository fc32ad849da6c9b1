// Package record defines what a balancer records of its decisions: the lines that `skyserve lb
// --record` writes, and the record of one request, which `skyserve explain` shows. A replay repeats
// every decision from the lines. Writers and readers import it instead of each other.
//
// Read record.go first (the header and the lines of a record), then request.go.
package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// Version is the format of a record. It is incremented with every change of a balancer's inputs,
// because an older record would not replay exactly.
const Version = 3

// Header is the first line of a record. It contains everything needed to create a core.Balancer
// that repeats the record's decisions, and no secret.
type Header struct {
	Record  int       `json:"record"` // Version
	Started time.Time `json:"started"`
	Self    Self      `json:"self"`
	Config  Config    `json:"config"`
}

// Self identifies the balancer that wrote a record.
type Self struct {
	Service string         `json:"service"`
	ID      string         `json:"id"`
	Region  service.Region `json:"region"`
}

// Config is core.Config in JSON: the policy by its name, the push mode in the format of
// core.ParsePush. Some keys are former names of the fields.
type Config struct {
	Policy    string             `json:"policy"`
	Push      string             `json:"push"`
	Order     core.QueueOrder    `json:"order"`
	Deadlines core.TierDeadlines `json:"targets"`
	// ModelDeadlines contains the deadlines by model.
	ModelDeadlines   map[string]core.TierDeadlines `json:"model_targets,omitempty"`
	SevereAfter      time.Duration                 `json:"tau_n_ns"`
	UrgentBefore     time.Duration                 `json:"tau_p_ns"`
	Forward          bool                          `json:"forward"`
	PeerQueueLimit   int                           `json:"tau"`
	QueueLimit       int                           `json:"queue_limit"`
	MaxWait          time.Duration                 `json:"max_wait_ns"`
	ScaleToZero      map[string]bool               `json:"scale_to_zero,omitempty"`
	MaxColdWait      time.Duration                 `json:"max_cold_wait_ns,omitempty"`
	ProbeInterval    time.Duration                 `json:"probe_interval_ns"`
	StaleIntervals   int                           `json:"stale_intervals"`
	LostIntervals    int                           `json:"lost_intervals"`
	UnconfirmedLimit int                           `json:"unconfirmed_limit"`
	OutstandingLimit int                           `json:"outstanding_limit"`
	SessionLead      time.Duration                 `json:"session_lead_ns"`
	PoolLimit        int                           `json:"pool_limit"`
	PoolInterval     time.Duration                 `json:"batch_interval_ns"`
	Deferred         core.DeferredRule             `json:"deferred"`
	MaxAttempts      int                           `json:"max_tries"`
	PeerBackoff      time.Duration                 `json:"peer_pause_ns"`
	TreeBytes        int                           `json:"tree_bytes"`
	TreeOrder        prefix.Order                  `json:"tree_order"`
	ShareBytes       int                           `json:"share_bytes"`
	RetryShare       float64                       `json:"retry_share"`
	RetryBurst       int                           `json:"retry_burst"` // 0 = no bound
	RetryBackoff     time.Duration                 `json:"retry_wait_ns"`
	MaxRetryBackoff  time.Duration                 `json:"retry_wait_max_ns"`
	EjectAfter       int                           `json:"eject_after"` // 0 = never
	EjectTime        time.Duration                 `json:"eject_time_ns"`
	MaxEjectTime     time.Duration                 `json:"eject_max_ns"`
	EjectShare       float64                       `json:"eject_share"`
	StopAfterDeaths  int                           `json:"kill_after"` // 0 = never
	KillProbeTime    time.Duration                 `json:"kill_wait_ns"`
	KillTTL          time.Duration                 `json:"kill_memory_ns"`
	MaxKillSuspects  int                           `json:"kill_limit"`
}

// MarshalJSON adds the former keys of MaxRetryBackoff and MaxEjectTime.
func (c Config) MarshalJSON() ([]byte, error) {
	type plain Config
	return json.Marshal(struct {
		plain
		OldMaxRetryBackoff time.Duration `json:"retry_wait_most_ns"`
		OldMaxEjectTime    time.Duration `json:"eject_most_ns"`
	}{plain(c), c.MaxRetryBackoff, c.MaxEjectTime})
}

// UnmarshalJSON also reads the former keys of MaxRetryBackoff and MaxEjectTime, for older records.
func (c *Config) UnmarshalJSON(data []byte) error {
	type plain Config
	var read struct {
		plain
		OldMaxRetryBackoff time.Duration `json:"retry_wait_most_ns"`
		OldMaxEjectTime    time.Duration `json:"eject_most_ns"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*c = Config(read.plain)
	c.MaxRetryBackoff = cmp.Or(c.MaxRetryBackoff, read.OldMaxRetryBackoff)
	c.MaxEjectTime = cmp.Or(c.MaxEjectTime, read.OldMaxEjectTime)
	return nil
}

// Line is every other line: one step, a new configuration for the following lines, or a gap. A gap
// means that Gap lines were not written because the disk was too slow or full. A record without a
// gap replays exactly.
type Line struct {
	T       time.Duration `json:"t"` // core's time in nanoseconds
	Event   *core.Event   `json:"event,omitempty"`
	Config  *Config       `json:"config,omitempty"`
	Actions []core.Action `json:"actions,omitempty"`
	Gap     int64         `json:"gap,omitempty"`
	// Panic is the value of a panic in the step. The process ended: no line follows.
	Panic string `json:"panic,omitempty"`
}

// NewConfig converts a configuration for a record's header.
func NewConfig(c *core.Config) Config {
	return Config{
		Policy: c.Policy.Name(), Push: c.Push.String(), Order: c.Order, Deadlines: c.Deadlines, ModelDeadlines: c.ModelDeadlines,
		SevereAfter: c.SevereAfter, UrgentBefore: c.UrgentBefore, Forward: c.Forward, PeerQueueLimit: c.PeerQueueLimit,
		QueueLimit: c.QueueLimit, MaxWait: c.MaxWait, ScaleToZero: c.ScaleToZero, MaxColdWait: c.MaxColdWait, ProbeInterval: c.ProbeInterval,
		StaleIntervals: c.StaleIntervals, LostIntervals: c.LostIntervals,
		UnconfirmedLimit: c.UnconfirmedLimit,
		OutstandingLimit: c.OutstandingLimit, SessionLead: c.SessionLead, PoolLimit: c.PoolLimit, PoolInterval: c.PoolInterval,
		Deferred: c.Deferred, MaxAttempts: c.MaxAttempts, PeerBackoff: c.PeerBackoff, TreeBytes: c.TreeBytes, TreeOrder: c.TreeOrder, ShareBytes: c.ShareBytes,
		RetryShare: c.RetryShare, RetryBurst: c.RetryBurst, RetryBackoff: c.RetryBackoff, MaxRetryBackoff: c.MaxRetryBackoff,
		EjectAfter: c.EjectAfter, EjectTime: c.EjectTime, MaxEjectTime: c.MaxEjectTime, EjectShare: c.EjectShare,
		StopAfterDeaths: c.StopAfterDeaths, KillProbeTime: c.KillProbeTime, KillTTL: c.KillTTL, MaxKillSuspects: c.MaxKillSuspects,
	}
}

// Core returns the configuration that a record's balancer ran with, with a new policy instance. It
// returns an error for an unknown policy, push mode or order.
func (c *Config) Core() (core.Config, error) {
	p, err := policy.New(c.Policy)
	if err != nil {
		return core.Config{}, fmt.Errorf("config.policy: %w", err)
	}
	push, err := core.ParsePush(c.Push)
	if err != nil {
		return core.Config{}, fmt.Errorf("config.push: %w", err)
	}
	order, err := core.ParseOrder(string(c.Order))
	if err != nil {
		return core.Config{}, fmt.Errorf("config.order: %w", err)
	}
	return core.Config{
		Policy: p, Push: push, Order: order, Deadlines: c.Deadlines, ModelDeadlines: c.ModelDeadlines, SevereAfter: c.SevereAfter, UrgentBefore: c.UrgentBefore, Forward: c.Forward, PeerQueueLimit: c.PeerQueueLimit, QueueLimit: c.QueueLimit, MaxWait: c.MaxWait, ScaleToZero: c.ScaleToZero, MaxColdWait: c.MaxColdWait,
		ProbeInterval: c.ProbeInterval, StaleIntervals: c.StaleIntervals, LostIntervals: c.LostIntervals,
		UnconfirmedLimit: c.UnconfirmedLimit,
		OutstandingLimit: c.OutstandingLimit, SessionLead: c.SessionLead, PoolLimit: c.PoolLimit, PoolInterval: c.PoolInterval,
		Deferred: c.Deferred, MaxAttempts: c.MaxAttempts, PeerBackoff: c.PeerBackoff, TreeBytes: c.TreeBytes, TreeOrder: c.TreeOrder, ShareBytes: c.ShareBytes,
		RetryShare: c.RetryShare, RetryBurst: c.RetryBurst, RetryBackoff: c.RetryBackoff, MaxRetryBackoff: c.MaxRetryBackoff,
		EjectAfter: c.EjectAfter, EjectTime: c.EjectTime, MaxEjectTime: c.MaxEjectTime, EjectShare: c.EjectShare,
		StopAfterDeaths: c.StopAfterDeaths, KillProbeTime: c.KillProbeTime, KillTTL: c.KillTTL, MaxKillSuspects: c.MaxKillSuspects,
	}, nil
}
