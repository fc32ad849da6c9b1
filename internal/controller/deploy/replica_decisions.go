package deploy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"skyserve/internal/atomicfile"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// ReplicaDecisions are the replicas that a plan, a strategy or an operator has drained or donated, and how many it desires.
// They are stored in a file or a record named decisions. They are no decisions about requests (core.Decision). The zero
// value contains none.
type ReplicaDecisions struct {
	// Drained are the sorted IDs of replicas that receive no requests.
	Drained []string `json:"drained"`
	// Donated are replicas that are donated or drain before removal, by ID.
	Donated []DonatedReplica `json:"donated"`
	// Desired are the desired counts of the models and regions where replicas were counted, of the service of Owner.
	Desired []DesiredCount `json:"desired,omitempty"`
	Owner   string         `json:"owner,omitempty"`
}

// DonatedReplica is a donated replica: it runs, but the service does not use it. It counts towards
// replicas.max, but not replicas.min.
type DonatedReplica struct {
	ID string `json:"id"`
	service.Donation
}

// ReadReplicaDecisions reads a file of ReplicaDecisions; none where there is no file. It returns an error
// for an unreadable file: otherwise drained replicas would receive requests.
func ReadReplicaDecisions(file string) (ReplicaDecisions, error) {
	var d ReplicaDecisions
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err == nil {
		err = atomicfile.DecodeJSON(file, text, &d)
	}
	if err != nil {
		return ReplicaDecisions{}, fmt.Errorf("reading which replicas are drained or donated: %w", err)
	}
	return d, nil
}

// Write writes decisions to a file.
func (d ReplicaDecisions) Write(file string) error {
	text, err := json.Marshal(d)
	if err == nil {
		err = identity.WriteFile(file, text)
	}
	if err != nil {
		return fmt.Errorf("writing which replicas are drained or donated: %w", err)
	}
	return nil
}

// NotServing returns the replicas that receive no requests.
func (d ReplicaDecisions) NotServing() map[string]bool {
	ids := map[string]bool{}
	for _, id := range d.Drained {
		ids[id] = true
	}
	for _, r := range d.Donated {
		ids[r.ID] = true
	}
	return ids
}

// Donation returns the donation of a replica; nil where it is not donated.
func (d ReplicaDecisions) Donation(id string) *service.Donation {
	for i := range d.Donated {
		if d.Donated[i].ID == id {
			return &d.Donated[i].Donation
		}
	}
	return nil
}

// IsDrained reports whether a replica is drained.
func (d ReplicaDecisions) IsDrained(id string) bool { return slices.Contains(d.Drained, id) }

// WithDrained returns d with a replica drained, or serving again.
func (d ReplicaDecisions) WithDrained(id string, drained bool) ReplicaDecisions {
	d.Drained = slices.DeleteFunc(slices.Clone(d.Drained), func(other string) bool { return other == id })
	if drained {
		d.Drained = append(d.Drained, id)
		slices.Sort(d.Drained)
	}
	return d
}

// WithDonated returns d with a replica donated, unless it already is.
func (d ReplicaDecisions) WithDonated(id string, donation service.Donation) ReplicaDecisions {
	if d.Donation(id) != nil {
		return d
	}
	d = d.WithDrained(id, false)
	d.Donated = append(slices.Clone(d.Donated), DonatedReplica{id, donation})
	slices.SortFunc(d.Donated, func(a, b DonatedReplica) int { return cmp.Compare(a.ID, b.ID) })
	return d
}

// Reclaimed returns d with a replica reclaimed.
func (d ReplicaDecisions) Reclaimed(id string) ReplicaDecisions {
	d.Donated = slices.DeleteFunc(slices.Clone(d.Donated), func(r DonatedReplica) bool { return r.ID == id })
	return d
}

// onlyExisting returns d without decisions about replicas that do not exist, whose IDs may be reused. A drained or donated
// replica on this computer whose process has ended remains so: the controller starts it again. One that drains before it is
// removed is not started again.
func (d ReplicaDecisions) onlyExisting(have []provision.Object, spec *service.Spec) ReplicaDecisions {
	isGone := func(id string, running []provision.Object) bool {
		return !isRunning(running, id) && !isStaticReplica(spec, id)
	}
	withEnded := withEnded(have)
	d.Drained = slices.DeleteFunc(slices.Clone(d.Drained), func(id string) bool { return isGone(id, withEnded) })
	d.Donated = slices.DeleteFunc(slices.Clone(d.Donated), func(r DonatedReplica) bool {
		return isGone(r.ID, withEnded) || r.Draining() && isGone(r.ID, have)
	})
	return d
}

// equal reports whether two contain the same decisions.
func (d ReplicaDecisions) equal(other ReplicaDecisions) bool {
	return d.equalCounts(other) && slices.Equal(d.Drained, other.Drained) && slices.EqualFunc(d.Donated, other.Donated, func(a, b DonatedReplica) bool {
		return a.ID == b.ID && a.Since.Equal(b.Since) && a.Until.Equal(b.Until)
	})
}

// BoundsError is a replica count that service.yaml does not allow.
type BoundsError struct {
	Model  string
	Region service.Region
	Count  int // the requested count
	// Drained are the IDs of drained replicas in Count.
	Drained []string
	service.Bounds
}

// Error returns a message with the requested and the allowed counts.
func (e *BoundsError) Error() string {
	source := "replicas.min and max of service.yaml"
	if e.Region.Cloud() == service.CloudStatic {
		source += ", by default the number of endpoints"
	}
	text := fmt.Sprintf("%s in %s: replicas must be %d to %d (%s), would be %d", e.Model, e.Region, e.Min, e.Max, source, e.Count)
	if len(e.Drained) > 0 {
		text += fmt.Sprintf(", %d of them drained ('skyserve replica drain %s --undo' lets them serve)", len(e.Drained), strings.Join(e.Drained, " "))
	}
	return text
}

// NoReplicaError is an ID that no replica of the service has.
type NoReplicaError struct{ ID string }

// Error returns a message with the ID.
func (e *NoReplicaError) Error() string { return fmt.Sprintf("the service has no replica %q", e.ID) }

// ModelUnknownError is a replica of a static region whose model is not in service.yaml, so that its
// bounds cannot be checked.
type ModelUnknownError struct{ ID string }

// Error returns a message with the replica.
func (e *ModelUnknownError) Error() string {
	return fmt.Sprintf("%s: its model is unknown, because service.yaml has several models and does not state which one this machine serves", e.ID)
}

// ErrNotManaged means that skyserve does not create a region's machines, so that none can be added or
// removed.
var ErrNotManaged = errors.New("machines of static regions are listed in service.yaml, and cannot be added or removed otherwise")

// ErrNoManualDecisions means that decisions about single replicas are not stored: the controller of a cloud
// service runs on another machine than the file of decisions, and each operator has a separate
// file.
var ErrNoManualDecisions = errors.New("replicas of a service with cloud regions cannot be drained or donated manually, because such decisions are not delivered to the controller")

// ErrNoStaticDecisions is ErrNoManualDecisions for a replica of a static region, which no command removes either.
var ErrNoStaticDecisions = fmt.Errorf("%w", ErrNoManualDecisions)

// isRunning reports whether a replica's machine is among objects.
func isRunning(have []provision.Object, id string) bool {
	return slices.ContainsFunc(have, func(o provision.Object) bool {
		return o.ID == id && o.Kind == provision.KindReplica && o.TerminatedReason == ""
	})
}
