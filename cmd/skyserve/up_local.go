package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/dns"
	"skyserve/provision/local"
)

// This file has the parts of `up` for local regions, whose machines are processes.

// localNameProblems returns why the public name of a local service cannot resolve to its balancers; none if
// it can, or if the service has no name.
func localNameProblems(spec *service.Spec) (problems service.Errors) {
	if spec.DNS == nil || cloud.UsesClouds(spec) {
		return nil
	}
	report := func(problem, format string, args ...any) {
		problems = append(problems, service.Error{Path: fmt.Sprintf(format, args...), Problem: problem})
	}
	for i, r := range spec.Regions {
		for j, base := range r.PublicURLs {
			record, err := dns.ParseRecord(service.NameRecord{ID: r.Name.ShortName(), Public: base})
			switch {
			case err != nil:
				report(err.Error(), "regions[%d].public_urls[%d]", i, j)
			case record.Address.IsLoopback() && spec.DNS.Provider == service.DNSRoute53:
				report("must not be a loopback address, which other machines cannot reach, got "+base, "regions[%d].public_urls[%d]", i, j)
			}
		}
		if spec.DNS.Provider != service.DNSRoute53 {
			continue
		}
		if len(r.PublicURLs) == 0 {
			report(fmt.Sprintf("a public name cannot resolve to the balancers of regions[%d] (%s), which listen on this machine's loopback address: set their public URLs in regions[%d].public_urls, or use provider: embedded", i, r.Name, i), "dns.provider")
		}
		if _, err := dns.AWSRegionOf(r.Name); err != nil {
			report(err.Error(), "regions[%d].name", i)
		}
	}
	return problems
}

// localRecords returns the records of a local service in a hosted zone: the public addresses of its
// balancers.
func localRecords(spec *service.Spec, have []provision.Object) (records []provision.DNSRecord, err error) {
	for _, n := range deploy.NameRecords(spec, have) {
		record, err := dns.ParseRecord(n)
		if err != nil {
			return nil, err
		}
		record.Check = n.Public + "/readyz" // check the URL that clients use
		records = append(records, record)
	}
	return records, nil
}

// localEarlierVersionError returns an error if processes of a version without agents are running.
func localEarlierVersionError(have []provision.Object, name, file string) error {
	if slices.ContainsFunc(have, deploy.IsEarlierVersion) {
		return failed(fmt.Errorf("updating %s: %w", name, deploy.ErrEarlierVersion), fmt.Sprintf("skyserve down %s, then: skyserve up %s", name, file))
	}
	return nil
}

// checkPorts checks, before anything is started, that running processes keep their ports and that
// every port that a launch needs is free.
func (u *upRun) checkPorts() error {
	if u.clouds.localService == nil {
		return nil
	}
	p := local.NewProvider(u.svc, "", "", 0).WithSpec(u.spec)
	err := p.CheckPorts(u.changes.Changes)
	var taken *provision.PortTakenError
	if errors.As(err, &taken) {
		example := ""
		if port := p.FreePort(); port > 0 && taken.Setting == local.PortSetting {
			example = fmt.Sprintf(", for example to %d (a service uses ports up to 999 above it)", port)
		}
		if taken.Fixed {
			return failed(err, fmt.Sprintf("nothing was started; stop the process that uses the port, then run 'skyserve up %s' again; %s can change only after 'skyserve down %s', which deletes the service's history", u.file, taken.Setting, u.spec.Name))
		}
		return failed(err, fmt.Sprintf("nothing was started; change %s in %s%s, or stop the process that uses the port", taken.Setting, u.file, example))
	}
	return specUsage(err)
}

// awaitServing waits until the local balancers serve. It prints a line for each machine that is ready and for which fresh
// returns true, and what it waits for if that takes long.
func (u *upRun) awaitServing(ctx context.Context, have []provision.Object, fresh func(id string) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("not ready within %s", u.timeout))
	defer cancel()
	began, waits := time.Now(), waitLines{}
	for _, o := range have {
		if o.Kind == provision.KindBalancer {
			waits.balancers = append(waits.balancers, o.ID)
		}
	}
	return u.servingDelivery(u.withoutRemoved(have)).AwaitServing(ctx, u.spec, u.draining, deploy.ServingObserver{
		Ready: func(id string) {
			if fresh(id) {
				u.printLine("ready %s", id)
			}
		},
		Waiting: func(ids []string, reasons map[string]string) {
			for _, line := range waits.due(time.Since(began), ids, reasons) {
				u.printLine("%s", line)
			}
		},
	})
}

// isChanged reports whether this run changes a machine.
func (u *upRun) isChanged(id string) bool {
	return slices.ContainsFunc(slices.Concat(u.changes.Changes, u.interimLaunches()), func(c provision.Change) bool { return c.ID() == id })
}

// findReloads finds the machines that keep running and reload another configuration, or, on this computer, files with other
// secrets. Those in clouds receive secrets with their configuration.
func (u *upRun) findReloads(ctx context.Context) error {
	if u.filter != nil || u.operator.authority == nil || !u.hasRunningMachine() {
		return nil
	}
	have, changed := slices.Clone(u.changes.Observed), map[string]bool{}
	for i := range have {
		if cloud.RunsOnThisComputer(have[i].Region) {
			have[i].TerminatedReason = "" // what has died restarts at the same place
		}
	}
	for _, c := range u.changes.Changes {
		changed[c.ID()] = true
	}
	h, deployments, err := u.delivery(have)
	if err != nil {
		return err
	}
	secrets, err := u.changedSecrets()
	if err != nil {
		return err
	}
	h.Machines = u.changes.Observed
	seen := h.ReadStatuses(ctx)
	for _, id := range slices.Sorted(maps.Keys(deployments)) {
		s := seen[id]
		if s.Err != nil || s.Phase != agent.PhaseReady || changed[id] {
			continue
		}
		i := slices.IndexFunc(u.changes.Observed, func(o provision.Object) bool { return o.ID == id && o.TerminatedReason == "" })
		o, what := u.changes.Observed[i], "configuration"
		if s.Revision == deployments[id].Revision {
			if o.Kind != provision.KindBalancer || len(secrets) == 0 {
				continue
			}
			what = strings.Join(secrets, ", ")
			u.rereads = append(u.rereads, id)
		}
		u.reloads = append(u.reloads, provision.Change{
			Action: provision.ActionReload, Desired: provision.Desired{ID: id, Kind: o.Kind, Region: o.Region}, Observed: o, Reason: "reload: " + what + " changed",
		})
	}
	return nil
}

// shownPlan returns the plan to print: its changes and the reloads.
func (u *upRun) shownPlan() *deploy.MachinePlan {
	p := *u.changes
	p.Changes = slices.Concat(u.interimLaunches(), p.Changes, u.reloads)
	return &p
}

// isReload reports whether a machine reloads another configuration.
func (u *upRun) isReload(id string) bool {
	return !slices.Contains(u.rereads, id) && slices.ContainsFunc(u.reloads, func(c provision.Change) bool { return c.ID() == id })
}

// plannedEndpoints returns the URLs at which local balancers will serve, by place.
func (u *upRun) plannedEndpoints() (map[string]string, error) {
	endpoints := map[string]string{}
	if u.clouds.localService == nil {
		return endpoints, nil
	}
	p := local.NewProvider(u.svc, "", "", 0).WithSpec(u.spec)
	scheme := "http://"
	if u.spec.Balancer.TLS != nil {
		scheme = "https://"
	}
	for _, w := range u.changes.Desired {
		if w.ID != provision.BalancerID(w.Region, 0) {
			continue
		}
		addr, err := p.PublicAddress(w)
		if err != nil {
			return nil, specUsage(err)
		}
		endpoints[w.Region.ShortName()] = scheme + addr
	}
	return endpoints, nil
}

// noteBase is the note that stores the base directory of relative paths in service.yaml.
const noteBase = "base.json"

// baseDir returns that directory: the one of the service file. For the copy that is stored with the service, it is the
// one of the file of the last `up`.
func (u *upRun) baseDir() (dir string, err error) {
	if u.isStoredCopy() {
		if err := u.svc.LoadValue(noteBase, &dir); err != nil || dir != "" {
			return dir, err
		}
	}
	return filepath.Abs(filepath.Dir(u.file))
}

// isStoredCopy reports whether the service file is the copy that is stored with the service.
func (u *upRun) isStoredCopy() bool {
	file, err := os.Stat(u.file)
	if err != nil {
		return false
	}
	stored, err := os.Stat(u.svc.SpecFile())
	return err == nil && os.SameFile(file, stored)
}

// reloadBalancers makes the local balancers reload their files, also those whose content changed under the
// same path. It returns an error if one rejects its files; that balancer keeps its old configuration.
func (u *upRun) reloadBalancers(ctx context.Context, have []provision.Object) error {
	if u.clouds.localService == nil {
		return nil
	}
	digests, err := u.secretDigests() // before balancers read the files, which may change meanwhile
	if err != nil {
		return err
	}
	h := deploy.Delivery{Service: u.spec.Name, Party: u.operator.party, Machines: have}
	if err := h.Reload(ctx); err != nil {
		return err
	}
	for _, id := range u.rereads {
		u.printLine("reloaded %s", id)
	}
	return u.svc.StoreValue(noteSecrets, digests)
}
