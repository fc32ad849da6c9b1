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

// Config is core.Config in JSON: the policy by its name, the push rule in the format of
// core.ParsePush.
type Config struct {
	Policy  string             `json:"policy"`
	Push    string             `json:"push"`
	Order   core.QueueOrder    `json:"order"`
	Targets core.TierDeadlines `json:"targets"`
	// ModelTargets contains the targets by model.
	ModelTargets     map[string]core.TierDeadlines `json:"model_targets,omitempty"`
	TauN             time.Duration                 `json:"tau_n_ns"`
	TauP             time.Duration                 `json:"tau_p_ns"`
	Forward          bool                          `json:"forward"`
	Tau              int                           `json:"tau"`
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
	BatchInterval    time.Duration                 `json:"batch_interval_ns"`
	Deferred         core.DeferredRule             `json:"deferred"`
	MaxTries         int                           `json:"max_tries"`
	PeerPause        time.Duration                 `json:"peer_pause_ns"`
	TreeBytes        int                           `json:"tree_bytes"`
	TreeOrder        prefix.Order                  `json:"tree_order"`
	ShareBytes       int                           `json:"share_bytes"`
	RetryShare       float64                       `json:"retry_share"`
	RetryBurst       int                           `json:"retry_burst"` // 0 = no bound
	RetryWait        time.Duration                 `json:"retry_wait_ns"`
	RetryWaitMax     time.Duration                 `json:"retry_wait_max_ns"`
	EjectAfter       int                           `json:"eject_after"` // 0 = never
	EjectTime        time.Duration                 `json:"eject_time_ns"`
	EjectMax         time.Duration                 `json:"eject_max_ns"`
	EjectShare       float64                       `json:"eject_share"`
	KillAfter        int                           `json:"kill_after"` // 0 = never
	KillWait         time.Duration                 `json:"kill_wait_ns"`
	KillMemory       time.Duration                 `json:"kill_memory_ns"`
	KillLimit        int                           `json:"kill_limit"`
}

// MarshalJSON adds the former keys of RetryWaitMax and EjectMax.
func (c Config) MarshalJSON() ([]byte, error) {
	type plain Config
	return json.Marshal(struct {
		plain
		OldRetryWaitMax time.Duration `json:"retry_wait_most_ns"`
		OldEjectMax     time.Duration `json:"eject_most_ns"`
	}{plain(c), c.RetryWaitMax, c.EjectMax})
}

// UnmarshalJSON also reads the former keys of RetryWaitMax and EjectMax, for older records.
func (c *Config) UnmarshalJSON(data []byte) error {
	type plain Config
	var read struct {
		plain
		OldRetryWaitMax time.Duration `json:"retry_wait_most_ns"`
		OldEjectMax     time.Duration `json:"eject_most_ns"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*c = Config(read.plain)
	c.RetryWaitMax = cmp.Or(c.RetryWaitMax, read.OldRetryWaitMax)
	c.EjectMax = cmp.Or(c.EjectMax, read.OldEjectMax)
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
		Policy: c.Policy.Name(), Push: c.Push.String(), Order: c.Order, Targets: c.Deadlines, ModelTargets: c.ModelDeadlines,
		TauN: c.SevereAfter, TauP: c.UrgentBefore, Forward: c.Forward, Tau: c.PeerQueueLimit,
		QueueLimit: c.QueueLimit, MaxWait: c.MaxWait, ScaleToZero: c.ScaleToZero, MaxColdWait: c.MaxColdWait, ProbeInterval: c.ProbeInterval,
		StaleIntervals: c.StaleIntervals, LostIntervals: c.LostIntervals,
		UnconfirmedLimit: c.UnconfirmedLimit,
		OutstandingLimit: c.OutstandingLimit, SessionLead: c.SessionLead, PoolLimit: c.PoolLimit, BatchInterval: c.PoolInterval,
		Deferred: c.Deferred, MaxTries: c.MaxAttempts, PeerPause: c.PeerBackoff, TreeBytes: c.TreeBytes, TreeOrder: c.TreeOrder, ShareBytes: c.ShareBytes,
		RetryShare: c.RetryShare, RetryBurst: c.RetryBurst, RetryWait: c.RetryBackoff, RetryWaitMax: c.MaxRetryBackoff,
		EjectAfter: c.EjectAfter, EjectTime: c.EjectTime, EjectMax: c.MaxEjectTime, EjectShare: c.EjectShare,
		KillAfter: c.StopAfterDeaths, KillWait: c.KillProbeTime, KillMemory: c.KillTTL, KillLimit: c.MaxKillSuspects,
	}
}

// Core returns the configuration that a record's balancer ran with, with a new policy instance. It
// returns an error for an unknown policy, push rule or order.
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
		Policy: p, Push: push, Order: order, Deadlines: c.Targets, ModelDeadlines: c.ModelTargets, SevereAfter: c.TauN, UrgentBefore: c.TauP, Forward: c.Forward, PeerQueueLimit: c.Tau, QueueLimit: c.QueueLimit, MaxWait: c.MaxWait, ScaleToZero: c.ScaleToZero, MaxColdWait: c.MaxColdWait,
		ProbeInterval: c.ProbeInterval, StaleIntervals: c.StaleIntervals, LostIntervals: c.LostIntervals,
		UnconfirmedLimit: c.UnconfirmedLimit,
		OutstandingLimit: c.OutstandingLimit, SessionLead: c.SessionLead, PoolLimit: c.PoolLimit, PoolInterval: c.BatchInterval,
		Deferred: c.Deferred, MaxAttempts: c.MaxTries, PeerBackoff: c.PeerPause, TreeBytes: c.TreeBytes, TreeOrder: c.TreeOrder, ShareBytes: c.ShareBytes,
		RetryShare: c.RetryShare, RetryBurst: c.RetryBurst, RetryBackoff: c.RetryWait, MaxRetryBackoff: c.RetryWaitMax,
		EjectAfter: c.EjectAfter, EjectTime: c.EjectTime, MaxEjectTime: c.EjectMax, EjectShare: c.EjectShare,
		StopAfterDeaths: c.KillAfter, KillProbeTime: c.KillWait, KillTTL: c.KillMemory, MaxKillSuspects: c.KillLimit,
	}, nil
}
