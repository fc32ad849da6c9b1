package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"skyserve/internal/agent"
	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/dns"
	"skyserve/provision/local"
)

// What `up` does for machines that are processes of this computer, beyond what it does for all.

// misnamed says why the name of a service on this computer cannot lead to its balancers; nil when
// it can, or when there is none.
func misnamed(spec *service.Spec) error {
	if spec.DNS == nil || cloud.Rents(spec) {
		return nil
	}
	for i, r := range spec.Regions {
		for j, base := range r.Public {
			record, err := dns.RecordOf(service.NameRecord{ID: r.Name.Place(), Public: base})
			switch {
			case err != nil:
				return fmt.Errorf("regions[%d].public[%d]: %w", i, j, err)
			case record.Address.IsLoopback() && spec.DNS.Provider == service.DNSRoute53:
				return fmt.Errorf("regions[%d].public[%d]: is a loopback address, which means another machine to everybody, got %s", i, j, base)
			}
		}
		if spec.DNS.Provider != service.DNSRoute53 {
			continue
		}
		if len(r.Public) == 0 {
			return fmt.Errorf("dns.provider: the balancers of regions[%d] (%s) listen on this machine's loopback address, to which no public name can lead: say in regions[%d].public where others reach them, or write provider: embedded", i, r.Name, i)
		}
		if _, err := dns.AWSRegionOf(r.Name); err != nil {
			return fmt.Errorf("regions[%d].name: %w", i, err)
		}
	}
	return nil
}

// recordsHere are the records of a service on this computer in a hosted zone: its balancers as
// others reach them.
func recordsHere(spec *service.Spec, have []provision.Object) (records []provision.Record, err error) {
	for _, n := range fleet.NameRecords(spec, have) {
		record, err := dns.RecordOf(n)
		if err != nil {
			return nil, err
		}
		record.Check = n.Public + "/readyz" // as those see it who are led there
		records = append(records, record)
	}
	return records, nil
}

// earlierHere is the error of processes of a version before machines; nil without any that runs.
func earlierHere(have []provision.Object, name, file string) error {
	if slices.ContainsFunc(have, fleet.IsEarlier) {
		return failed(fmt.Errorf("%s runs: %w", name, fleet.ErrEarlier), fmt.Sprintf("skyserve down %s, then: skyserve up %s", name, file))
	}
	return nil
}

// checkPorts makes sure that what runs on this computer keeps its ports and that every port that a
// launch needs is free, before anything is started.
func (u *upRun) checkPorts() error {
	if u.clouds.here == nil {
		return nil
	}
	err := local.NewProvider(u.svc, "", "", 0).For(u.spec).CheckPorts(u.changes.Changes)
	var taken *provision.PortTakenError
	if errors.As(err, &taken) {
		return failed(err, fmt.Sprintf("nothing was started; change %s in %s, or stop what is there", taken.Setting, u.file))
	}
	return specUsage(err)
}

// awaitServing waits until balancers on this computer serve, and says it of those that are fresh.
func (u *upRun) awaitServing(ctx context.Context, have []provision.Object, fresh func(id string) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("not ready within %s", u.timeout))
	defer cancel()
	h := fleet.Handover{Service: u.spec.Name, Party: u.operator.party, Have: have}
	return h.AwaitServing(ctx, u.spec, u.leaving, func(id string) {
		if fresh(id) {
			u.line("ready %s", id)
		}
	})
}

// isChanged says whether a machine is one that was changed.
func (u *upRun) isChanged(id string) bool {
	return slices.ContainsFunc(u.changes.Changes, func(c provision.Change) bool { return c.ID() == id })
}

// findReloads finds the machines on this computer that go on and take up another configuration.
func (u *upRun) findReloads(ctx context.Context) error {
	if cloud.Rents(u.spec) || u.only != nil || u.operator.authority == nil {
		return nil
	}
	have, changed := slices.Clone(u.changes.Have), map[string]bool{}
	for i := range have {
		have[i].Gone = "" // what died starts again where it was
	}
	for _, c := range u.changes.Changes {
		changed[c.ID()] = true
	}
	h, deployments, err := u.handover(have)
	if err != nil {
		return err
	}
	h.Have = u.changes.Have
	seen := h.Look(ctx)
	for _, id := range slices.Sorted(maps.Keys(deployments)) {
		s := seen[id]
		if s.Err != nil || s.Phase != agent.PhaseReady || changed[id] || s.Revision == deployments[id].Revision {
			continue
		}
		i := slices.IndexFunc(u.changes.Have, func(o provision.Object) bool { return o.ID == id && o.Gone == "" })
		o := u.changes.Have[i]
		u.reloads = append(u.reloads, provision.Change{
			Action: provision.ActionReload, Want: provision.Want{ID: id, Kind: o.Kind, Region: o.Region}, Have: o, Reason: "reload: configuration changed",
		})
	}
	return nil
}

// shown are all changes as people and programs are told of them.
func (u *upRun) shown() *fleet.Plan {
	p := *u.changes
	p.Changes = slices.Concat(p.Changes, u.reloads)
	return &p
}

// reloads says whether a machine is one that takes up another configuration.
func (u *upRun) isReload(id string) bool {
	return slices.ContainsFunc(u.reloads, func(c provision.Change) bool { return c.ID() == id })
}

// plannedEndpoints is where balancers on this computer will answer clients, by place.
func (u *upRun) plannedEndpoints() (map[string]string, error) {
	endpoints := map[string]string{}
	if u.clouds.here == nil {
		return endpoints, nil
	}
	p := local.NewProvider(u.svc, "", "", 0).For(u.spec)
	scheme := "http://"
	if u.spec.Balancer.TLS != nil {
		scheme = "https://"
	}
	for _, w := range u.changes.Wants {
		if w.ID != provision.BalancerID(w.Region, 0) {
			continue
		}
		addr, err := p.PublicAddress(w)
		if err != nil {
			return nil, specUsage(err)
		}
		endpoints[w.Region.Place()] = scheme + addr
	}
	return endpoints, nil
}

// noteBase is where it is noted below which directory the relative paths of service.yaml are.
const noteBase = "base.json"

// base is that directory: where `up` was run last.
func (u *upRun) base() (dir string, err error) {
	if u.only == nil {
		return os.Getwd()
	}
	return dir, u.svc.Note(noteBase, &dir)
}

// keepHere keeps what other shells need to know of a service on this computer.
func (u *upRun) keepHere() error {
	dir, err := u.base()
	if err == nil {
		err = u.svc.TakeNote(noteBase, dir)
	}
	if err == nil {
		err = u.svc.KeepAdminToken()
	}
	return err
}

// reload has balancers on this computer read their files again, those too that changed without
// their paths, and tells of one that refuses what it finds: it goes on with what it had.
func (u *upRun) reload(ctx context.Context, have []provision.Object) error {
	if u.clouds.here == nil {
		return nil
	}
	h := fleet.Handover{Service: u.spec.Name, Party: u.operator.party, Have: have}
	return h.Reload(ctx)
}
