package deploy

import (
	"cmp"
	"context"
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
	reports := map[string]reported{}
	for n, o := range machines {
		snapshot := responses[n].snapshot
		if snapshot == nil {
			continue
		}
		snapshots = append(snapshots, snapshot)
		addReports(reports, o, snapshot)
	}
	i.addMissing(s)
	if c := s.Controller; !cloud.UsesClouds(i.Deployer.Spec) && (c == nil || c.State != service.StateReady) {
		s.Store = "unknown"
	}
	for n := range s.Regions {
		for m := range s.Regions[n].Balancers {
			if b := &s.Regions[n].Balancers[m]; b.State == service.StateFailed && cloud.RunsOnThisComputer(s.Regions[n].Name) {
				b.State = service.ReplicaState(StateDown)
			}
		}
		for m := range s.Regions[n].Replicas {
			i.addReplicaReport(&s.Regions[n].Replicas[m], reports)
		}
	}
	s.addSnapshots(snapshots)
	s.Cold = coldLines(snapshots, s.Regions)
}

// reported is a balancer's report of a replica.
type reported struct {
	balancer string
	telemetry.ReplicaSnapshot
}

// addReports adds a balancer's reports of the replicas of its own region.
func addReports(reports map[string]reported, o provision.Object, s *telemetry.Snapshot) {
	for _, region := range s.Regions {
		for _, r := range region.Replicas {
			had, has := reports[r.ID]
			if region.Name == o.Region && (!has || r.State == service.StateReady && had.State != service.StateReady) {
				reports[r.ID] = reported{o.ID, r}
			}
		}
	}
}

// addMissing adds desired machines on this computer that do not exist, and the machines of static
// regions.
func (i *Inspector) addMissing(s *ServiceStatus) {
	for n := range s.Regions {
		r := &s.Regions[n]
		for _, c := range s.Drift {
			if c.Action != provision.ActionLaunch || c.Region != r.Name || !cloud.RunsOnThisComputer(r.Name) {
				continue
			}
			m := MachineStatus{ID: c.ID, State: service.ReplicaState(StateDown), Reason: "not started; run 'skyserve up'", Desired: true}
			list := &r.Balancers
			if c.Kind == provision.KindReplica {
				m.State, list = service.StatePending, &r.Replicas
			}
			if !slices.ContainsFunc(*list, func(has MachineStatus) bool { return has.ID == c.ID }) {
				*list = append(*list, m)
			}
		}
	}
	for _, c := range attachedOf(i.Deployer.Spec) {
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
	if r.State != service.StateReady && r.State != service.StateStarting {
		return
	}
	report, has := reports[r.ID]
	switch d := i.Decisions.Donation(r.ID); {
	case r.Drained:
		r.State, r.Reason = service.StateDraining, "receives no new requests; undo with 'skyserve replica drain --undo "+r.ID+"'"
	case d != nil && d.Draining():
		r.State, r.Reason = service.StateShuttingDown, "receives no new requests before its removal"
	case d != nil:
		r.State, r.Reason = service.StateDonated, d.String()
	case has:
		r.Balancer, r.Model, r.GPU = report.balancer, cmp.Or(r.Model, report.Model), cmp.Or(r.GPU, report.GPU)
		r.State, r.Reason = report.State, report.Reason
	}
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
		s.LastFailure = failure.Line(time.Local)
	}
	if planned != nil {
		s.Peak, s.Plan, s.Deviation = planned.PeakLine(), planned.PlanLine(time.Local), planned.DeviationLine()
	}
	if control != nil {
		s.Leadership, s.StoreState = control.Controller, control.Store
		if control.Store != nil {
			s.Store = control.Store.Line()
		}
	}
	if scaled != nil {
		s.Launches = scaled.Launches
		s.Strategy, s.Donations = strings.TrimSpace(scaled.Strategy), scaled.DonationLine()
		s.Events = append(s.Events, scaled.EventLines(time.Local, maxShownEvents)...)
	}
}
