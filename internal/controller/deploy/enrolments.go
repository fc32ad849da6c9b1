package deploy

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/identity"
	"skyserve/provision"
)

// DocumentStore stores documents about a service on its operator's machine: local.Service. LoadValue leaves v
// unchanged where there is no document with that name.
type DocumentStore interface {
	LoadValue(name string, v any) error
	StoreValue(name string, v any) error
}

// documentEnrolments is the name of the document of launched balancers.
const documentEnrolments = "balancers.json"

// maxLaunches is the maximum number of recorded launches per ID: the running machine, its
// replacement, and two whose launch was never confirmed.
const maxLaunches = 4

// labelLaunch is the label that identifies a launched machine to a process that crashed before the
// cloud responded.
const labelLaunch = "launch"

// Enrolments records the balancer machines that an `up` of this operator, or a controller, launched. Tags alone do not
// prove that a machine is a balancer, because everyone who may launch machines in the cloud account
// can set them. Balancers receive secrets, and those whose machine runs a controller receive all secrets of the
// service. Therefore only recorded machines are enrolled as balancers. It is safe for concurrent use.
type Enrolments struct {
	// LabelKey is the key from which the label of a launch (a tag that identifies it) is derived. Operators and controllers with the same
	// key give the replacement of a machine the same label, so that only one machine is launched when two of
	// them replace it at the same time. Empty = labels are random. It is set where controllers launch balancers.
	LabelKey string

	documents DocumentStore
	// enrolled is DeploymentInput.Enrolled, in a controller: handles by machine ID.
	enrolled map[string][]string

	mu       sync.Mutex
	launches []balancerLaunch
	unsaved  bool // launches has some that are not stored
}

// balancerLaunch is one launch of a balancer's machine.
type balancerLaunch struct {
	ID string `json:"id"`
	// Label is the machine's value of labelLaunch. It is recorded before the launch.
	Label string `json:"word,omitempty"`
	// Handle is the machine's ID in the cloud; empty until the cloud responds.
	Handle string `json:"handle,omitempty"`
	// Fingerprint is the fingerprint of the first key that the machine reported; empty before.
	Fingerprint string `json:"fingerprint,omitempty"`
	// At is when the launch was last attempted. Tries is how often: attempts in several zones, one after the other, count
	// once.
	At    time.Time `json:"at,omitzero"`
	Tries int       `json:"tries,omitempty"`
}

// ReadEnrolments reads the record of a service. A new service has none.
func ReadEnrolments(documents DocumentStore) (*Enrolments, error) {
	e := &Enrolments{documents: documents}
	if err := documents.LoadValue(documentEnrolments, &e.launches); err != nil {
		return nil, fmt.Errorf("%w; remove the file: 'skyserve up' then records balancers with a certificate of the service again", err)
	}
	return e, nil
}

// Handles returns the cloud IDs of the recorded balancer machines, by machine ID.
func (e *Enrolments) Handles() map[string][]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := map[string][]string{}
	for _, l := range e.launches {
		if l.Handle != "" {
			all[l.ID] = append(all[l.ID], l.Handle)
		}
	}
	return all
}

// isLaunched reports whether a machine was launched here.
func (e *Enrolments) isLaunched(o provision.Object) bool {
	return slices.Contains(e.Handles()[o.ID], o.Handle)
}

// update changes the record and stores it.
func (e *Enrolments) update(to func([]balancerLaunch) []balancerLaunch) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	launches := to(slices.Clone(e.launches))
	if err := e.documents.StoreValue(documentEnrolments, launches); err != nil {
		return err
	}
	e.launches, e.unsaved = launches, false
	return nil
}

// beginLaunch records an imminent launch and returns the machine's launch label: that of an
// unconfirmed earlier launch where there is one, so that its machine is found instead of created
// twice.
func (e *Enrolments) beginLaunch(id string) (label string, err error) {
	err = e.update(func(all []balancerLaunch) []balancerLaunch {
		at := -1
		for i, l := range all {
			if l.ID == id && l.Handle == "" && l.Label != "" {
				at = i
			}
		}
		if at < 0 {
			all = dropOldestLaunches(append(all, balancerLaunch{ID: id, Label: e.newLabel(id)}))
			at = len(all) - 1
		}
		now := time.Now().UTC()
		if now.Sub(all[at].At) >= relaunchBackoff.First {
			all[at].Tries++
		}
		all[at].At = now
		label = all[at].Label
		return all
	})
	return label, err
}

// newLabel returns the label of the launch that replaces the last recorded machine of an ID.
func (e *Enrolments) newLabel(id string) string {
	if e.LabelKey == "" {
		return strings.ToLower(rand.Text())
	}
	known := e.enrolled[id]
	last := ""
	if len(known) > 0 {
		last = known[len(known)-1]
	}
	for _, l := range e.launches {
		if l.ID == id && l.Handle != "" && !slices.Contains(known, l.Handle) {
			last = l.Handle // launched after enrolled was delivered
		}
	}
	mac := hmac.New(sha256.New, []byte(e.LabelKey))
	_, _ = fmt.Fprintf(mac, "launch %q after %q", id, last) // never fails
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// finishLaunch records the cloud ID of the machine with a launch label.
func (e *Enrolments) finishLaunch(id, label, handle string) error {
	return e.update(func(all []balancerLaunch) []balancerLaunch {
		for i, l := range all {
			if l.ID == id && l.Label == label && l.Handle == "" {
				all[i].Handle = handle
			}
		}
		return all
	})
}

// accept adds the launches of another record: machines and unconfirmed launches that are not in this one.
func (e *Enrolments) accept(others []balancerLaunch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range others {
		if !slices.ContainsFunc(e.launches, func(l balancerLaunch) bool {
			return l.ID == other.ID && (l.Handle == other.Handle || other.Handle == "" && l.Label == other.Label)
		}) {
			e.launches = append(slices.DeleteFunc(e.launches, func(l balancerLaunch) bool {
				return l.ID == other.ID && l.Handle == "" && l.Label == other.Label
			}), other)
			e.unsaved = true
		}
	}
	e.launches = dropOldestLaunches(e.launches)
}

// RecordKnown records the known machines that ClassifyMachines returned.
func (e *Enrolments) RecordKnown(machines []provision.Object) error {
	for _, o := range machines {
		label := o.Labels[labelLaunch]
		err := e.update(func(all []balancerLaunch) []balancerLaunch {
			for i, l := range all {
				if l.ID == o.ID && l.Handle == "" && l.Label == label {
					all[i].Handle = o.Handle
					return all
				}
			}
			return dropOldestLaunches(append(all, balancerLaunch{ID: o.ID, Label: label, Handle: o.Handle}))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// dropOldestLaunches drops the oldest launches of each ID beyond maxLaunches.
func dropOldestLaunches(all []balancerLaunch) []balancerLaunch {
	count := map[string]int{}
	for i := len(all) - 1; i >= 0; i-- {
		if count[all[i].ID]++; count[all[i].ID] > maxLaunches {
			all = slices.Delete(all, i, i+1)
		}
	}
	return all
}

// keyOf returns the fingerprint of the key with which a balancer's machine was enrolled; empty if unknown.
func (e *Enrolments) keyOf(o provision.Object) string {
	if e == nil {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.launches, func(l balancerLaunch) bool { return l.ID == o.ID && l.Handle == o.Handle })
	if i < 0 {
		return ""
	}
	return e.launches[i].Fingerprint
}

// pinKey records the first key that a machine reports. For another key it returns an
// *identity.PinError.
func (e *Enrolments) pinKey(o provision.Object, fingerprint string) error {
	e.mu.Lock()
	i := slices.IndexFunc(e.launches, func(l balancerLaunch) bool { return l.ID == o.ID && l.Handle == o.Handle })
	var had string
	if i >= 0 {
		had = e.launches[i].Fingerprint
	}
	e.mu.Unlock()
	switch {
	case i < 0:
		return &UnknownMachinesError{Machines: []provision.Object{o}}
	case had == fingerprint:
		return nil
	case had != "":
		return fmt.Errorf("reading the key of %s (%s): %w", o.ID, o.Handle, &identity.PinError{Want: had, Found: fingerprint})
	}
	return e.update(func(all []balancerLaunch) []balancerLaunch {
		for i, l := range all {
			if l.ID == o.ID && l.Handle == o.Handle {
				all[i].Fingerprint = fingerprint
			}
		}
		return all
	})
}

// ClassifyMachines returns unknown machines: those that have the tags or the ID of a balancer, but are not
// recorded as launched by an `up` of this operator or by a controller. isCertified reports whether a machine's agent presents a
// valid certificate of the service with the machine's name. Where this operator's record was lost
// and the name is unique, the certificate proves the machine's identity.
// known are valid machines that are not recorded yet: see RecordKnown.
func (e *Enrolments) ClassifyMachines(machines []provision.Object, isCertified func(provision.Object) bool) (unknown, known []provision.Object) {
	recorded := e.Handles()
	running := slices.DeleteFunc(slices.Clone(machines), func(o provision.Object) bool {
		return o.TerminatedReason != "" || o.Kind != provision.KindBalancer && (o.Kind != provision.KindReplica || !provision.IsBalancerID(o.ID))
	})
	idCount, labelCount := map[string]int{}, map[string]int{}
	for _, o := range running {
		idCount[o.ID]++
		labelCount[o.ID+" "+o.Labels[labelLaunch]]++
	}
	for _, o := range running {
		switch {
		case o.Kind != provision.KindBalancer:
			unknown = append(unknown, o)
		case slices.Contains(recorded[o.ID], o.Handle):
		case e.hasLaunchLabel(o) && labelCount[o.ID+" "+o.Labels[labelLaunch]] == 1, idCount[o.ID] == 1 && isCertified(o):
			known = append(known, o)
		default:
			unknown = append(unknown, o)
		}
	}
	return unknown, known
}

// hasLaunchLabel reports whether a machine has the launch label of an unconfirmed launch.
func (e *Enrolments) hasLaunchLabel(o provision.Object) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.launches, func(l balancerLaunch) bool {
		return l.ID == o.ID && l.Handle == "" && l.Label != "" && l.Label == o.Labels[labelLaunch]
	})
}

// UnknownMachinesError contains the unknown machines of ClassifyMachines: they have the tags or the ID of a balancer, but
// neither this operator nor a controller is known to have launched them.
type UnknownMachinesError struct{ Machines []provision.Object }

// Error returns a message with the machines.
func (e *UnknownMachinesError) Error() string {
	var all []string
	for _, o := range e.Machines {
		all = append(all, fmt.Sprintf("%s (%s in %s)", o.ID, o.Handle, o.Region))
	}
	return fmt.Sprintf("%s: tagged as a balancer, but not launched by 'skyserve up' and without a certificate of the service; receives no secrets", strings.Join(all, ", "))
}

// Hint returns how to resolve it, for the service of a file.
func (e *UnknownMachinesError) Hint(file string) string {
	var flags []string
	for _, o := range e.Machines {
		if flag := "--replace " + o.ID; !slices.Contains(flags, flag) {
			flags = append(flags, flag)
		}
	}
	return fmt.Sprintf("check who launched it (CloudTrail, Cloud Audit Logs), then run: skyserve up %s %s", file, strings.Join(flags, " "))
}

// recordingProvider launches machines and records balancers before and after.
type recordingProvider struct {
	provision.Provider
	enrolments *Enrolments
}

// Launch implements provision.Provider.
func (n recordingProvider) Launch(ctx context.Context, desired provision.Desired) (provision.Object, error) {
	if desired.Kind != provision.KindBalancer {
		return n.Provider.Launch(ctx, desired)
	}
	label, err := n.enrolments.beginLaunch(desired.ID)
	if err != nil {
		return provision.Object{}, err
	}
	desired.Labels = maps.Clone(desired.Labels)
	if desired.Labels == nil {
		desired.Labels = map[string]string{}
	}
	desired.Labels[labelLaunch] = label
	o, err := n.Provider.Launch(ctx, desired)
	switch {
	case err != nil:
		return o, err
	case n.enrolments.isLaunched(o):
		return o, nil
	case o.Labels[labelLaunch] != label: // it existed before this launch
		return o, &UnknownMachinesError{Machines: []provision.Object{o}}
	}
	return o, n.enrolments.finishLaunch(desired.ID, label, o.Handle)
}
