package proxy

import (
	"fmt"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// newRecordConfig is a configuration as a record's header holds it.
func newRecordConfig(c *core.Config) RecordConfig {
	return RecordConfig{
		Policy: c.Policy.Name(), Push: c.Push.String(), Order: c.Order, Targets: c.Targets, ModelTargets: c.ModelTargets,
		TauN: c.TauN, TauP: c.TauP, Forward: c.Forward, Tau: c.Tau,
		QueueLimit: c.QueueLimit, MaxWait: c.MaxWait, ProbeInterval: c.ProbeInterval,
		StaleIntervals: c.StaleIntervals, LostIntervals: c.LostIntervals,
		UnconfirmedLimit: c.UnconfirmedLimit,
		OutstandingLimit: c.OutstandingLimit, SessionLead: c.SessionLead, PoolLimit: c.PoolLimit, BatchInterval: c.BatchInterval,
		Deferred: c.Deferred, MaxTries: c.MaxTries, PeerPause: c.PeerPause, TreeBytes: c.TreeBytes, TreeOrder: c.TreeOrder, ShareBytes: c.ShareBytes,
		RetryShare: c.RetryShare, RetryBurst: c.RetryBurst, RetryWait: c.RetryWait, RetryWaitMost: c.RetryWaitMost,
		EjectAfter: c.EjectAfter, EjectTime: c.EjectTime, EjectMost: c.EjectMost, EjectShare: c.EjectShare,
		KillAfter: c.KillAfter, KillWait: c.KillWait, KillMemory: c.KillMemory, KillLimit: c.KillLimit,
	}
}

// Core is the configuration that a record's balancer ran with, with a policy
// that has seen nothing yet. It fails on a policy, push rule or order that is not known.
func (c *RecordConfig) Core() (core.Config, error) {
	p, err := policy.New(c.Policy)
	if err != nil {
		return core.Config{}, fmt.Errorf("reading config.policy: %w", err)
	}
	push, err := core.ParsePush(c.Push)
	if err != nil {
		return core.Config{}, fmt.Errorf("reading config.push: %w", err)
	}
	order, err := core.ParseOrder(string(c.Order))
	if err != nil {
		return core.Config{}, fmt.Errorf("reading config.order: %w", err)
	}
	return core.Config{
		Policy: p, Push: push, Order: order, Targets: c.Targets, ModelTargets: c.ModelTargets, TauN: c.TauN, TauP: c.TauP, Forward: c.Forward, Tau: c.Tau, QueueLimit: c.QueueLimit, MaxWait: c.MaxWait,
		ProbeInterval: c.ProbeInterval, StaleIntervals: c.StaleIntervals, LostIntervals: c.LostIntervals,
		UnconfirmedLimit: c.UnconfirmedLimit,
		OutstandingLimit: c.OutstandingLimit, SessionLead: c.SessionLead, PoolLimit: c.PoolLimit, BatchInterval: c.BatchInterval,
		Deferred: c.Deferred, MaxTries: c.MaxTries, PeerPause: c.PeerPause, TreeBytes: c.TreeBytes, TreeOrder: c.TreeOrder, ShareBytes: c.ShareBytes,
		RetryShare: c.RetryShare, RetryBurst: c.RetryBurst, RetryWait: c.RetryWait, RetryWaitMost: c.RetryWaitMost,
		EjectAfter: c.EjectAfter, EjectTime: c.EjectTime, EjectMost: c.EjectMost, EjectShare: c.EjectShare,
		KillAfter: c.KillAfter, KillWait: c.KillWait, KillMemory: c.KillMemory, KillLimit: c.KillLimit,
	}, nil
}
