package fleet

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"skyserve/internal/identity"
	"skyserve/provision"
)

// Notes keeps documents about a service where its operator is: local.Service. Note leaves v as it
// is where there is none of that name.
type Notes interface {
	Note(name string, v any) error
	TakeNote(name string, v any) error
}

// noteEnrolments is the name of the note of the balancers that were launched.
const noteEnrolments = "balancers.json"

// maxLaunches bounds what is remembered of one id: what runs, what takes its place, and two that
// were begun and never seen again.
const maxLaunches = 4

// labelLaunch is the label by which a machine is known as the one that was launched, by whoever
// was ended before the cloud answered.
const labelLaunch = "launch"

// Enrolments are the balancers' machines that an `up` of this operator launched. A machine says
// by its tags that it is a balancer, and whoever may launch machines in the account may give
// their own these tags. Balancers are handed secrets, one of them all of the service: only
// what is in here is enrolled as one. It is for several goroutines at once.
type Enrolments struct {
	notes Notes

	mu       sync.Mutex
	launches []launched
}

// launched is one launch of a balancer's machine.
type launched struct {
	ID string `json:"id"`
	// Word is what the machine carries as labelLaunch. It is noted before the launch.
	Word string `json:"word,omitempty"`
	// Handle is what the cloud calls it; empty while no answer came.
	Handle string `json:"handle,omitempty"`
	// Fingerprint is that of the key that it told first; empty before.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// ReadEnrolments reads what is noted of a service. A new one has none.
func ReadEnrolments(notes Notes) (*Enrolments, error) {
	e := &Enrolments{notes: notes}
	if err := notes.Note(noteEnrolments, &e.launches); err != nil {
		return nil, fmt.Errorf("%w: remove the file, and balancers that have a certificate of the service are noted again", err)
	}
	return e, nil
}

// Handles are what clouds call the balancers' machines that are known, by id.
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

// isLaunched says whether a machine is one that was launched here.
func (e *Enrolments) isLaunched(o provision.Object) bool {
	return slices.Contains(e.Handles()[o.ID], o.Handle)
}

// change changes what is remembered, and notes it.
func (e *Enrolments) change(to func([]launched) []launched) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	launches := to(slices.Clone(e.launches))
	if err := e.notes.TakeNote(noteEnrolments, launches); err != nil {
		return err
	}
	e.launches = launches
	return nil
}

// beginLaunch notes that a machine is about to be launched, and returns the word that it is to
// carry: that of the launch of which nothing was heard, where there is one, so that its machine is
// found rather than made twice.
func (e *Enrolments) beginLaunch(id string) (word string, err error) {
	e.mu.Lock()
	for _, l := range e.launches {
		if l.ID == id && l.Handle == "" {
			word = l.Word
		}
	}
	e.mu.Unlock()
	if word != "" {
		return word, nil
	}
	word = strings.ToLower(rand.Text())
	return word, e.change(func(all []launched) []launched { return bounded(append(all, launched{ID: id, Word: word})) })
}

// finishLaunch notes what the machine with this word is called.
func (e *Enrolments) finishLaunch(id, word, handle string) error {
	return e.change(func(all []launched) []launched {
		for i, l := range all {
			if l.ID == id && l.Word == word && l.Handle == "" {
				all[i].Handle = handle
			}
		}
		return all
	})
}

// Adopt notes machines that Examine found to be known.
func (e *Enrolments) Adopt(machines []provision.Object) error {
	for _, o := range machines {
		word := o.Labels[labelLaunch]
		err := e.change(func(all []launched) []launched {
			all = slices.DeleteFunc(all, func(l launched) bool { return l.ID == o.ID && l.Handle == "" && l.Word == word })
			return bounded(append(all, launched{ID: o.ID, Word: word, Handle: o.Handle}))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// bounded drops the oldest launches of each id, so that as many stay as maxLaunches says.
func bounded(all []launched) []launched {
	count := map[string]int{}
	for i := len(all) - 1; i >= 0; i-- {
		if count[all[i].ID]++; count[all[i].ID] > maxLaunches {
			all = slices.Delete(all, i, i+1)
		}
	}
	return all
}

// pinKey holds a machine to the key that it told first. Its error is an *identity.PinError where
// it tells another.
func (e *Enrolments) pinKey(o provision.Object, fingerprint string) error {
	e.mu.Lock()
	i := slices.IndexFunc(e.launches, func(l launched) bool { return l.ID == o.ID && l.Handle == o.Handle })
	var had string
	if i >= 0 {
		had = e.launches[i].Fingerprint
	}
	e.mu.Unlock()
	switch {
	case i < 0:
		return &StrangersError{Machines: []provision.Object{o}}
	case had == fingerprint:
		return nil
	case had != "":
		return fmt.Errorf("reading the key of %s (%s): %w", o.ID, o.Handle, &identity.PinError{Want: had, Found: fingerprint})
	}
	return e.change(func(all []launched) []launched {
		for i, l := range all {
			if l.ID == o.ID && l.Handle == o.Handle {
				all[i].Fingerprint = fingerprint
			}
		}
		return all
	})
}

// Examine finds the strangers among machines: those that claim to be balancers, or have the id of
// one, and that no `up` of this operator launched. isCertified says whether the agent of a machine
// shows a good certificate of the service in the machine's name: where this operator's record was
// lost, and no other machine has that name, it proves who the machine is, since its key was
// certified before. known are those that are no strangers and are not noted yet: see Adopt.
func (e *Enrolments) Examine(machines []provision.Object, isCertified func(provision.Object) bool) (strangers, known []provision.Object) {
	noted := e.Handles()
	running := slices.DeleteFunc(slices.Clone(machines), func(o provision.Object) bool {
		return o.Gone != "" || o.Kind != provision.KindBalancer && (o.Kind != provision.KindReplica || !provision.IsBalancerID(o.ID))
	})
	named, carried := map[string]int{}, map[string]int{}
	for _, o := range running {
		named[o.ID]++
		carried[o.ID+" "+o.Labels[labelLaunch]]++
	}
	for _, o := range running {
		switch {
		case o.Kind != provision.KindBalancer:
			strangers = append(strangers, o)
		case slices.Contains(noted[o.ID], o.Handle):
		case e.awaits(o) && carried[o.ID+" "+o.Labels[labelLaunch]] == 1, named[o.ID] == 1 && isCertified(o):
			known = append(known, o)
		default:
			strangers = append(strangers, o)
		}
	}
	return strangers, known
}

// awaits says whether a machine carries the word of a launch of which nothing was heard.
func (e *Enrolments) awaits(o provision.Object) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.launches, func(l launched) bool {
		return l.ID == o.ID && l.Handle == "" && l.Word != "" && l.Word == o.Labels[labelLaunch]
	})
}

// StrangersError is machines that claim to be balancers and that no operator launched.
type StrangersError struct{ Machines []provision.Object }

// Error names them.
func (e *StrangersError) Error() string {
	var all []string
	for _, o := range e.Machines {
		all = append(all, fmt.Sprintf("%s (%s in %s)", o.ID, o.Handle, o.Region))
	}
	return fmt.Sprintf("%s: claims to be a balancer; no 'skyserve up' launched it, and it has no certificate of the service: it is handed no secrets", strings.Join(all, ", "))
}

// Hint is what to do about them, where the service is that of a file.
func (e *StrangersError) Hint(file string) string {
	var flags []string
	for _, o := range e.Machines {
		if flag := "--replace " + o.ID; !slices.Contains(flags, flag) {
			flags = append(flags, flag)
		}
	}
	return fmt.Sprintf("find out who launched it (CloudTrail, Cloud Audit Logs), then: skyserve up %s %s", file, strings.Join(flags, " "))
}

// noting launches machines, and notes balancers before and after.
type noting struct {
	provision.Provider
	enrolments *Enrolments
}

// Launch implements provision.Provider.
func (n noting) Launch(ctx context.Context, w provision.Want) (provision.Object, error) {
	if w.Kind != provision.KindBalancer {
		return n.Provider.Launch(ctx, w)
	}
	word, err := n.enrolments.beginLaunch(w.ID)
	if err != nil {
		return provision.Object{}, err
	}
	w.Labels = maps.Clone(w.Labels)
	if w.Labels == nil {
		w.Labels = map[string]string{}
	}
	w.Labels[labelLaunch] = word
	o, err := n.Provider.Launch(ctx, w)
	switch {
	case err != nil:
		return o, err
	case n.enrolments.isLaunched(o):
		return o, nil
	case o.Labels[labelLaunch] != word: // it was there already, and this did not launch it
		return o, &StrangersError{Machines: []provision.Object{o}}
	}
	return o, n.enrolments.finishLaunch(w.ID, word, o.Handle)
}
