package lbd

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/admin"
	"skyserve/lbd/discover"
)

// Origins of replicas that were not discovered. The origin of a discovered replica is that of its source
// (package discover).
const (
	originConfig     = telemetry.OriginConfig
	originController = "controller" // an assignment of the controller
	originAPI        = telemetry.OriginAPI
)

// conflictInterval is the interval in which a discovered replica that another origin has attached is
// tried again.
const conflictInterval = time.Second

// checkReplicaURL validates the URL of a replica that is no DNS name.
func checkReplicaURL(raw string) error {
	_, err := admin.ReplicaURL(raw)
	return err
}

// ownedError rejects a change of a discovered replica: its source alone decides.
func ownedError(id, origin string) error {
	return fmt.Errorf("replica %q comes from %s: change it there, or drain it with POST /workers/%s/drain: %w", id, origin, id, admin.ErrDiscovered)
}

// setDiscovered applies the new list of an origin: it attaches new replicas, and removes missing ones once their
// requests have finished. It does not change a replica that another origin has attached.
func (f *fleet) setDiscovered(origin string, replicas []service.ReplicaConfig) {
	f.discovering.Lock()
	defer f.discovering.Unlock()
	if f.discovered[origin] = replicas; replicas == nil {
		delete(f.discovered, origin)
	}
	f.applyDiscovered(origin, replicas)
}

// retryConflicts attaches listed replicas that are no longer attached by another origin.
func (f *fleet) retryConflicts() {
	f.discovering.Lock()
	defer f.discovering.Unlock()
	for _, origin := range slices.Sorted(maps.Keys(f.conflictMessages())) {
		wanted := map[string]bool{}
		for _, cfg := range f.discovered[origin] {
			if wanted[replicaID(cfg)] = true; f.mayTakeOver(replicaID(cfg), origin) {
				f.attachListed(cfg, origin)
			}
		}
		f.pruneConflicts(origin, wanted)
	}
}

// applyDiscovered is setDiscovered; f.discovering must be held.
func (f *fleet) applyDiscovered(origin string, replicas []service.ReplicaConfig) {
	wanted := map[string]bool{}
	for _, cfg := range replicas {
		wanted[replicaID(cfg)] = true
		f.attachListed(cfg, origin)
	}
	for _, id := range f.discoveredBy(origin) {
		if !wanted[id] {
			f.log.Info("discovered replica is gone", "replica", id, "origin", origin)
			f.removeWhenIdle(id, origin)
		}
	}
	f.pruneConflicts(origin, wanted)
}

// attachListed attaches a replica that an origin lists, if it is not attached as listed.
func (f *fleet) attachListed(cfg service.ReplicaConfig, origin string) {
	cfg.ID = replicaID(cfg)
	if f.hasReplica(cfg) && f.originOf(cfg.ID) == origin {
		return
	}
	switch added, err := f.attach(cfg, origin); {
	case errors.Is(err, errOtherOrigin) || errors.Is(err, admin.ErrDiscovered):
		f.setConflict(cfg.ID, origin)
	case err != nil:
		f.log.Error("attaching a discovered replica failed", "replica", cfg.ID, "origin", origin, "err", err)
	case added:
		f.log.Info("replica discovered", "replica", cfg.ID, "url", cfg.URL, "origin", origin)
	}
}

// setConfigured records which replicas the configuration lists: a discovered one of them stays when its source drops
// it. f.discovering must be held.
func (f *fleet) setConfigured(replicas []service.ReplicaConfig) {
	f.discovered[originConfig] = replicas
	wanted := map[string]bool{}
	for _, cfg := range replicas {
		id := replicaID(cfg)
		if wanted[id] = true; isDiscovered(f.originOf(id)) {
			f.setConflict(id, originConfig)
		}
	}
	f.pruneConflicts(originConfig, wanted)
}

// errOtherOrigin means that another origin has attached a replica.
var errOtherOrigin = errors.New("another origin has attached the replica")

// originOf returns the origin of an attached replica; empty if there is none.
func (f *fleet) originOf(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.origins[id]
}

// discoveredBy returns the ids of the attached replicas of an origin, sorted, without those that are being
// removed.
func (f *fleet) discoveredBy(origin string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for id, by := range f.origins {
		if by == origin && !f.removing[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// isDiscovered reports whether an origin is a source of package discover.
func isDiscovered(origin string) bool {
	return origin != "" && origin != originConfig && origin != originController && origin != originAPI
}

// checkOrigin decides whether a replica may be attached with an origin, and returns the origin that it then
// has; f.mu must be held. A replica keeps its origin if it is attached again at the same URL. The controller
// may take over any replica; no other origin may take over a discovered one.
func (f *fleet) checkOrigin(cfg service.ReplicaConfig, origin string) (string, error) {
	old, held := f.attached[cfg.ID]
	by := f.origins[cfg.ID]
	switch {
	case cfg.Epoch > 0:
		return originController, nil
	case !held || by == origin || f.removing[cfg.ID]:
		return origin, nil
	case origin == originAPI && old.URL == cfg.URL:
		return by, nil
	case isDiscovered(by):
		return "", ownedError(cfg.ID, by)
	case isDiscovered(origin):
		return "", errOtherOrigin
	}
	return origin, nil
}

// setConflict records that an origin lists a replica that another origin has attached.
func (f *fleet) setConflict(id, origin string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i, known := slices.BinarySearch(f.conflicts[id], origin); !known {
		f.log.Warn("a discovered replica is already attached", "replica", id, "origin", origin, "attached_by", f.origins[id])
		f.conflicts[id] = slices.Insert(f.conflicts[id], i, origin)
	}
}

// mayTakeOver reports whether an origin lists a replica that another origin had attached, and may own it now: what a
// controller assigned is not changed.
func (f *fleet) mayTakeOver(id, origin string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.conflicts[id], origin) && f.origins[id] != originController
}

// pruneConflicts removes those conflicts of an origin that no longer exist. wanted are the replicas that it lists.
func (f *fleet) pruneConflicts(origin string, wanted map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, origins := range f.conflicts {
		if i, known := slices.BinarySearch(origins, origin); known && (!wanted[id] || f.origins[id] == origin) {
			f.conflicts[id] = slices.Delete(origins, i, i+1)
		}
	}
	maps.DeleteFunc(f.conflicts, func(_ string, origins []string) bool { return len(origins) == 0 })
}

// conflictMessages describes the listed replicas that another origin has attached, by the origin that lists them.
func (f *fleet) conflictMessages() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(f.conflicts)) {
		for _, origin := range f.conflicts[id] {
			ids[origin] = append(ids[origin], fmt.Sprintf("%s (attached by %s)", id, cmp.Or(f.origins[id], "nothing any more")))
		}
	}
	messages := map[string]string{}
	for origin, list := range ids {
		messages[origin] = fmt.Sprintf("%s lists replicas that are attached already: %s", origin, strings.Join(list[:min(len(list), maxListedNames)], ", "))
	}
	return messages
}

// startDiscovery follows the sources of the configuration.
func (b *balancer) startDiscovery() {
	b.discovery = discover.New(discover.Options{CheckURL: checkReplicaURL, Apply: b.fleet.setDiscovered, Resolver: b.opts.Resolver, Logger: b.log})
	b.discovery.SetSources(b.cfg.ReplicasFile, namesOf(b.cfg.Replicas))
	b.fleet.removals.Go(func() { runEvery(b.fleet.ctx, conflictInterval, b.fleet.retryConflicts) })
}

// namesOf returns the configured replicas whose URLs are DNS names.
func namesOf(replicas []service.ReplicaConfig) []service.ReplicaConfig {
	_, names := discover.Split(replicas)
	return names
}

// staticOf returns the other configured replicas.
func staticOf(replicas []service.ReplicaConfig) []service.ReplicaConfig {
	static, _ := discover.Split(replicas)
	return static
}

// discoveryAlerts returns the problems of discovering replicas.
func (b *balancer) discoveryAlerts() []telemetry.Alert {
	if b.discovery == nil {
		return nil
	}
	var alerts []telemetry.Alert
	alert := telemetry.Alert{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertDiscovery, Region: b.cfg.Region}
	for _, p := range b.discovery.Problems() {
		alert.Object, alert.Message, alert.NextStep, alert.Since = p.Origin, p.Message, p.NextStep, &p.Since
		alerts = append(alerts, alert)
	}
	conflicts := b.fleet.conflictMessages()
	for _, origin := range slices.Sorted(maps.Keys(conflicts)) {
		alert.Object, alert.Message, alert.Since = origin, conflicts[origin], nil
		alert.NextStep = "list each replica in one place"
		alerts = append(alerts, alert)
	}
	return alerts
}
