package fleet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// Decisions are what a plan, a strategy or an operator decided about replicas that exist, beside
// their number. They are kept in a file. The zero value decides nothing.
type Decisions struct {
	// Drained are the ids of replicas that are sent nothing, sorted.
	Drained []string `json:"drained"`
	// Donated are those that are donated, or are emptied before they are removed, by id.
	Donated []Donated `json:"donated"`
}

// Donated is a replica that is donated: it runs, and the service sends it nothing. replicas.max
// counts it, replicas.min does not.
type Donated struct {
	ID string `json:"id"`
	service.Donation
}

// ReadDecisions reads a file of decisions; none where there is no file. One that cannot be read is
// an error: taking it for none would send requests to what was drained.
func ReadDecisions(file string) (Decisions, error) {
	var d Decisions
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		return Decisions{}, fmt.Errorf("reading what was decided about replicas in %s: %w", file, err)
	}
	return d, nil
}

// Write keeps decisions in a file.
func (d Decisions) Write(file string) error {
	text, err := json.Marshal(d)
	if err == nil {
		err = identity.WriteFile(file, text)
	}
	if err != nil {
		return fmt.Errorf("keeping what was decided about replicas: %w", err)
	}
	return nil
}

// Idle are the replicas that are sent nothing.
func (d Decisions) Idle() map[string]bool {
	ids := map[string]bool{}
	for _, id := range d.Drained {
		ids[id] = true
	}
	for _, r := range d.Donated {
		ids[r.ID] = true
	}
	return ids
}

// Donation is for how long a replica is donated; nil where it is not.
func (d Decisions) Donation(id string) *service.Donation {
	for i := range d.Donated {
		if d.Donated[i].ID == id {
			return &d.Donated[i].Donation
		}
	}
	return nil
}

// IsDrained says whether a replica is drained.
func (d Decisions) IsDrained(id string) bool { return slices.Contains(d.Drained, id) }

// WithDrained is d with a replica drained, or serving again.
func (d Decisions) WithDrained(id string, drained bool) Decisions {
	d.Drained = slices.DeleteFunc(slices.Clone(d.Drained), func(other string) bool { return other == id })
	if drained {
		d.Drained = append(d.Drained, id)
		slices.Sort(d.Drained)
	}
	return d
}

// WithDonated is d with a replica donated that was not.
func (d Decisions) WithDonated(id string, how service.Donation) Decisions {
	if d.Donation(id) != nil {
		return d
	}
	d = d.WithDrained(id, false)
	d.Donated = append(slices.Clone(d.Donated), Donated{id, how})
	slices.SortFunc(d.Donated, func(a, b Donated) int { return cmp.Compare(a.ID, b.ID) })
	return d
}

// Reclaimed is d with a replica taken back.
func (d Decisions) Reclaimed(id string) Decisions {
	d.Donated = slices.DeleteFunc(slices.Clone(d.Donated), func(r Donated) bool { return r.ID == id })
	return d
}

// about is d less what is about replicas that do not exist: another may get their ids.
func (d Decisions) about(exists func(id string) bool) Decisions {
	d.Drained = slices.DeleteFunc(slices.Clone(d.Drained), func(id string) bool { return !exists(id) })
	d.Donated = slices.DeleteFunc(slices.Clone(d.Donated), func(r Donated) bool { return !exists(r.ID) })
	return d
}

// equal says whether two decide the same.
func (d Decisions) equal(other Decisions) bool {
	return slices.Equal(d.Drained, other.Drained) && slices.EqualFunc(d.Donated, other.Donated, func(a, b Donated) bool {
		return a.ID == b.ID && a.Since.Equal(b.Since) && a.Until.Equal(b.Until)
	})
}

// BoundsError is a count of replicas that service.yaml does not allow.
type BoundsError struct {
	Model  string
	Region service.Region
	Count  int // what was asked for
	service.Bounds
}

// Error says what was asked for and what is allowed.
func (e *BoundsError) Error() string {
	return fmt.Sprintf("%s in %s: replicas must be %d to %d (replicas.min and max of service.yaml), got %d", e.Model, e.Region, e.Min, e.Max, e.Count)
}

// NoReplicaError is an id that no replica of the service has.
type NoReplicaError struct{ ID string }

// Error names the id.
func (e *NoReplicaError) Error() string { return fmt.Sprintf("the service has no replica %q", e.ID) }

// ModelUnknownError is a replica of a static region of which service.yaml does not say what it
// serves, so that no bounds can be held.
type ModelUnknownError struct{ ID string }

// Error names the replica.
func (e *ModelUnknownError) Error() string {
	return fmt.Sprintf("%s: which model it serves is not known here, because the service has several", e.ID)
}

// ErrNotOurs says that a region's machines are not made by skyserve, so that none can be added or
// removed.
var ErrNotOurs = errors.New("its machines are listed in service.yaml: none can be added or removed, only drained")

// ErrNotKept says that what is decided of single replicas is not kept: the controller of a service
// in clouds runs on another machine than the file of decisions, and each of several operators has
// a file of its own.
var ErrNotKept = errors.New("replicas of services with regions in clouds are not drained or donated by hand, since their controller would not know of it")

// runs says whether a replica's machine is among objects.
func runs(have []provision.Object, id string) bool {
	return slices.ContainsFunc(have, func(o provision.Object) bool { return o.ID == id && o.Gone == "" })
}
