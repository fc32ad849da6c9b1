package deploy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// maxShownEvents is the number of scaling events in a status.
const maxShownEvents = 3

// addBalancerReports adds the balancers' reports and the decisions to the agents' status.
func (i *Inspector) addBalancerReports(ctx context.Context, s *ServiceStatus, machines []provision.Object, responses []machineReport) {
	s.Events = []string{}
	s.DNS = i.nameStatus(ctx, machines, responses)
	if s.StateError = i.StateError; s.StateError != "" {
		s.Problems = append(s.Problems, s.StateError)
	}
	var snapshots []*telemetry.Snapshot
	reports, balancers := map[string]reported{}, map[string]service.StateReason{}
	unknown := map[string]bool{}
	for n, o := range machines {
		var err *UnknownMachinesError
		unknown[o.ID] = errors.As(responses[n].err, &err)
		snapshot := responses[n].snapshot
		if snapshot == nil {
			continue
		}
		snapshots = append(snapshots, snapshot)
		addReports(reports, o, snapshot)
		if b := snapshot.Balancer(o.ID); b != nil {
			balancers[o.ID] = service.StateReason{State: b.State, Reason: b.Reason}
		}
	}
	i.addMissing(s)
	if !cloud.UsesClouds(i.Deployer.Spec) && !s.controllerRuns() {
		s.Store = "unknown"
	}
	for n := range s.Regions {
		var replicas []service.ReplicaState
		for m := range s.Regions[n].Replicas {
			r := &s.Regions[n].Replicas[m]
			i.addReplicaReport(r, reports)
			replicas = append(replicas, r.State)
		}
		for m := range s.Regions[n].Balancers {
			if b := &s.Regions[n].Balancers[m]; !unknown[b.ID] {
				addBalancerReport(b, balancers, replicas)
			}
		}
	}
	s.addSnapshots(snapshots)
	s.Cold = append(coldLines(snapshots, s.Regions), emptyLines(i.Deployer.Spec, s.Regions)...)
}

// addBalancerReport adds what a balancer reports about itself to the state of its machine. replicas are the states of its
// region's replicas.
func addBalancerReport(b *MachineStatus, reports map[string]service.StateReason, replicas []service.ReplicaState) {
	f := service.BalancerFacts{Machine: service.StateReason{State: b.State, Reason: b.Reason}, Reported: reports[b.ID], Replicas: replicas}
	if f.Reported.State == "" && (b.State == service.StateReady || b.State == service.StateDraining) {
		f.Reported = f.Machine // its agent probes it
	}
	state := f.State()
	if state.State != b.State || state.Reason != "" {
		b.State, b.Reason = state.State, state.Reason
	}
}

// reported is a balancer's report of a replica.
type reported struct {
	balancer string // empty = unknown
	rank     int    // the report with the highest rank counts
	telemetry.ReplicaSnapshot
}

// Ranks of reports.
const (
	reportUnattached = iota + 1 // by the controller
	reportOfPeer                // of a replica of another region's balancer
	reportOwn                   // of a replica in the region of the balancer that responded
	reportOwnReady
)

// addReports adds a balancer's reports of replicas.
func addReports(reports map[string]reported, o provision.Object, s *telemetry.Snapshot) {
	for _, region := range s.Regions {
		for _, r := range region.Replicas {
			one := reported{"", reportOfPeer, r}
			switch {
			case !r.IsAttached():
				if one.rank = reportUnattached; !isOutOfService(r.State) && r.State != service.StateNotReady {
					continue // the state of its machine has been read since
				}
			case region.Name == o.Region && r.State == service.StateReady:
				one.balancer, one.rank = o.ID, reportOwnReady
			case region.Name == o.Region:
				one.balancer, one.rank = o.ID, reportOwn
			}
			if one.rank > reports[r.ID].rank {
				reports[r.ID] = one
			}
		}
	}
}

// isOutOfService reports whether a replica in this state receives no requests because of a decision.
func isOutOfService(s service.ReplicaState) bool {
	return s == service.StateDraining || s == service.StateDonated || s == service.StateShuttingDown
}

// addMissing adds desired machines on this computer that do not exist, and the machines of static
// regions.
func (i *Inspector) addMissing(s *ServiceStatus) {
	for n := range s.Regions {
		r := &s.Regions[n]
		for _, c := range s.Drift {
			if c.Action != provision.ActionLaunch || c.Region != r.Name || !cloud.RunsOnThisComputer(r.Name) || c.Kind == provision.KindNameServer {
				continue
			}
			m := MachineStatus{ID: c.ID, State: service.StateUnreachable, Reason: "not started; run 'skyserve up'", Desired: true}
			list := &r.Balancers
			if c.Kind == provision.KindReplica {
				m.State, list = service.StatePending, &r.Replicas
			}
			if !slices.ContainsFunc(*list, func(has MachineStatus) bool { return has.ID == c.ID }) {
				*list = append(*list, m)
			}
		}
	}
	for _, c := range staticReplicas(i.Deployer.Spec) {
		n := slices.IndexFunc(s.Regions, func(r RegionStatus) bool { return r.Name == c.Region })
		if n < 0 {
			s.Regions = append(s.Regions, RegionStatus{Name: c.Region, Balancers: []MachineStatus{}, Replicas: []MachineStatus{}})
			n = len(s.Regions) - 1
		}
		s.Regions[n].Replicas = append(s.Regions[n].Replicas, MachineStatus{
			ID: c.ID, State: service.StateStarting, Reason: "no balancer reports it", URL: c.URL, Model: c.Model, GPU: c.GPU, Desired: true,
		})
	}
	for n := range s.Regions {
		for m := range s.Regions[n].Replicas {
			r := &s.Regions[n].Replicas[m]
			r.Desired = r.Desired && !slices.ContainsFunc(s.Drift, func(c StatusChange) bool { return c.ID == r.ID && c.Action == provision.ActionTerminate })
		}
	}
}

// addReplicaReport adds a balancer's report of a replica, and the decisions about it.
func (i *Inspector) addReplicaReport(r *MachineStatus, reports map[string]reported) {
	if models := i.Deployer.Spec.Models; r.Model == "" && len(models) == 1 {
		r.Model = models[0].Name
	}
	r.Drained, r.Donated = i.Decisions.IsDrained(r.ID), i.Decisions.Donation(r.ID) != nil
	report := reports[r.ID]
	if report.rank == reportUnattached && report.State == service.StateNotReady && r.State != service.StateReady {
		report = reported{} // the state of its machine has been read since
	}
	f := service.ReplicaFacts{
		Machine: service.StateReason{State: r.State, Reason: r.Reason}, Reported: service.StateReason{State: report.State, Reason: report.Reason},
		InFlight: report.Outstanding, Donation: i.Decisions.Donation(r.ID),
	}
	if r.Drained {
		f.DrainReason = drainReason(r.ID)
	}
	if (r.Drained || r.Donated) && report.rank == reportOfPeer && report.State == service.StateReady {
		f.Reported = service.StateReason{} // of before the decision: its own balancer no longer reports it
	}
	state := f.State()
	r.State, r.Reason = state.State, state.Reason
	if state == f.Reported && (f.InFlight > 0 || f.DrainReason == "" && f.Donation == nil) {
		r.Balancer = report.balancer
	}
	r.Model, r.GPU = cmp.Or(r.Model, report.Model), cmp.Or(r.GPU, report.GPU)
}

// addSnapshots adds plans, strategies and alerts from the balancers.
func (s *ServiceStatus) addSnapshots(snapshots []*telemetry.Snapshot) {
	alerts := [][]telemetry.Alert{s.Alerts}
	var planned, scaled, control *telemetry.Snapshot
	var failure *telemetry.Event
	for _, snapshot := range snapshots {
		alerts = append(alerts, snapshot.Alerts)
		if snapshot.Plan != nil && (planned == nil || snapshot.Plan.At.After(planned.Plan.At)) {
			planned = snapshot
		}
		if c := snapshot.Controller; c != nil && (control == nil || c.Term > control.Controller.Term) {
			control = snapshot
		}
		if snapshot.Strategy != "" && scaled == nil {
			scaled = snapshot // all balancers have the same
		}
		if e := snapshot.LastFailure(); e != nil && (failure == nil || e.At.After(failure.At)) {
			failure = e
		}
	}
	s.Alerts = telemetry.MergeAlerts(alerts...)
	s.Batches = []string{}
	for _, snapshot := range snapshots {
		if lines := snapshot.BatchLines(time.Local); len(s.Batches) == 0 && lines != nil {
			s.Batches = lines // all balancers report the same
		}
	}
	if failure != nil {
		s.LastFailure = failure.FailureLine(time.Local)
	}
	if planned != nil {
		s.Peak, s.Plan, s.Deviation = planned.PeakLine(), planned.PlanLine(time.Local), planned.DeviationLine()
	}
	if control != nil {
		s.Leadership, s.StoreState = control.Controller, control.Store
		if control.Store != nil {
			s.Store = control.StoreLine()
		}
	}
	if scaled != nil {
		s.Launches = scaled.Launches
		s.Strategy, s.Donations = strings.TrimSpace(scaled.Strategy), scaled.DonationLine()
		s.Events = append(s.Events, scaled.EventLines(time.Local, maxShownEvents)...)
	}
}
