package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// How often a machine that is not ready is asked again: lookEvery where many are waited
// for, oneEvery at first where one answers, which mostly is about to be ready, or where one that
// serves takes up another deployment.
const (
	lookEvery = 3 * time.Second
	oneEvery  = 300 * time.Millisecond
	lookHere  = 50 * time.Millisecond // a machine on this computer is up within a second
)

// Handover hands machines what they are to run, and waits until they do.
type Handover struct {
	Service string
	Party   identity.Party
	// Authority certifies machines; nil where it is on another operator's machine, who
	// alone can enrol.
	Authority *identity.Authority
	// Enrolments are the balancers that may be enrolled; nil = none may.
	Enrolments *Enrolments
	// Revoked is the list of revoked certificates that machines are to have.
	Revoked identity.Revoked
	Witness provision.Witness
	// Have is the machines with their addresses.
	Have []provision.Object
	// Progress is told of a machine whose phase or reason changed; nil = nobody listens.
	// Calls never overlap.
	Progress func(id string, s agent.Status)
	// Self is the machine that this program runs on, by its id, which is reached by its
	// private address; empty = none of them.
	Self string
	// Now tells the time by which certificates are renewed; nil = time.Now.
	Now func() time.Time

	mu   sync.Mutex
	last map[string]agent.Status
}

// Run hands each machine its deployment and returns when all are ready, or when ctx
// ends; the error then says of each machine what it lacks. New machines, and those that
// are not ready, get theirs at once, replicas by way of balancers. Those that serve get
// another deployment one after the other, balancers first, and no further once one of
// them does not come back; a replica is emptied before, and used again after that.
func (h *Handover) Run(ctx context.Context, deployments map[string]agent.Deployment) error {
	seen := h.Look(ctx)
	serving, others := h.split(seen, deployments)
	var wg sync.WaitGroup
	errs := make([]error, len(others))
	for i, o := range others {
		wg.Go(func() { errs[i] = h.until(ctx, o, deployments[o.ID], lookEveryOf(o)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	defer h.Resume(context.WithoutCancel(ctx), h.replicas(deployments)) // also those that an earlier run left empty
	for _, o := range serving {
		if o.Kind == provision.KindReplica && seen[o.ID].Revision != deployments[o.ID].Revision {
			h.tell(o.ID, agent.Status{Phase: agent.PhaseDraining, Reason: "before it is changed"})
			h.Drain(ctx, o)
		}
		if err := h.until(ctx, o, deployments[o.ID], oneEvery); err != nil {
			return err
		}
		if o.Kind == provision.KindReplica {
			h.Use(ctx, o)
		}
	}
	return nil
}

// lookEveryOf is how often a machine is asked that is waited for.
func lookEveryOf(o provision.Object) time.Duration {
	if cloud.IsHere(o.Region) {
		return lookHere
	}
	return lookEvery
}

// replicas are those that are to run something.
func (h *Handover) replicas(deployments map[string]agent.Deployment) []provision.Object {
	return slices.DeleteFunc(slices.Clone(h.Have), func(o provision.Object) bool {
		_, wanted := deployments[o.ID]
		return o.Kind != provision.KindReplica || !wanted
	})
}

// askTimeout bounds one question about how a machine does.
const askTimeout = 5 * time.Second

// Seen is what the agent of a machine said, or why it said nothing.
type Seen struct {
	agent.Status
	Err error
}

// Look asks all machines that can be reached at once how they do, each for at most 5 s.
func (h *Handover) Look(ctx context.Context) map[string]Seen {
	var mu sync.Mutex
	var wg sync.WaitGroup
	all := map[string]Seen{}
	for _, o := range h.Have {
		if !o.Kind.IsMachine() || o.Gone != "" || !Reachable(o) {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			s, err := h.Operator(o).Status(ctx, h.Machine(o))
			mu.Lock()
			defer mu.Unlock()
			all[o.ID] = Seen{s, err}
		})
	}
	wg.Wait()
	return all
}

// split finds the machines that serve, and of those the ones that are to run something
// else, balancers first; the others are those that do not serve. A machine that does
// and runs what it should is in neither, and nor is one that its cloud is about to take:
// to wait for it would be in vain.
func (h *Handover) split(seen map[string]Seen, deployments map[string]agent.Deployment) (serving, others []provision.Object) {
	for _, o := range h.Have {
		d, wanted := deployments[o.ID]
		s := seen[o.ID] // one that does not answer has no phase
		switch {
		case !wanted || s.Phase == agent.PhaseInterrupted:
		case s.Phase != agent.PhaseReady:
			others = append(others, o)
		case s.Revision != d.Revision || s.Revoked < h.Revoked.Number() || h.Operator(o).Renews(s.Status):
			serving = append(serving, o)
		}
	}
	slices.SortFunc(serving, func(a, b provision.Object) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return serving, others
}

// until hands a machine over what it is to run, again and again until it is ready. One that answers,
// or is reached by way of another, is asked sooner at first, and then ever more seldom: it may load
// weights for minutes.
func (h *Handover) until(ctx context.Context, o provision.Object, d agent.Deployment, every time.Duration) error {
	operator, machine := h.Operator(o), h.Machine(o)
	soon := min(every, oneEvery)
	for {
		wait := every
		s, err := operator.Ensure(ctx, machine, d)
		switch {
		case err == nil && s.Phase == agent.PhaseReady:
			h.tell(o.ID, s)
			return nil
		case err == nil:
			h.tell(o.ID, s)
			wait, soon = soon, min(every, 2*soon)
		case permanent(err):
			return err
		default:
			h.tell(o.ID, agent.Status{Phase: agent.PhaseWaiting, Reason: waiting(err)})
			if errors.Is(err, errNoRelay) { // which costs no call to its cloud
				wait, soon = soon, min(every, 2*soon)
			}
		}
		if !pause(ctx, wait) {
			if err == nil {
				err = fmt.Errorf("%s: %s", s.Phase, s.Reason)
			}
			return fmt.Errorf("waiting for %s: %w: %w", o.ID, context.Cause(ctx), err)
		}
	}
}

// permanent says whether waiting does not help.
func permanent(err error) bool {
	var refusal *agent.Refusal
	var strangers *StrangersError
	return errors.Is(err, identity.ErrPin) || errors.As(err, &strangers) || errors.As(err, &refusal) && refusal.Status != http.StatusBadGateway || errors.Is(err, errNotHere)
}

// waiting says of what a machine that cannot be spoken to yet is short.
func waiting(err error) string {
	switch {
	case errors.Is(err, agent.ErrNoFingerprint):
		return "for its machine to boot"
	case errors.Is(err, errNoRelay):
		return "for a balancer of its region, by way of which it is reached"
	}
	return err.Error()
}

// Inform hands the controller of a service its deployment before anything else is changed,
// so that it and whoever brings the service up want the same. It does nothing where there
// is no controller yet, and it is an error if that does not answer within 5 s: until it
// was told it goes by what it has, so that it may launch again what is removed now.
func (h *Handover) Inform(ctx context.Context, deployments map[string]agent.Deployment) error {
	i := slices.IndexFunc(h.Have, func(o provision.Object) bool {
		d := deployments[o.ID]
		return o.Gone == "" && Reachable(o) && slices.ContainsFunc(d.Units, func(u agent.Unit) bool { return u.Name == UnitController })
	})
	if i < 0 {
		return nil
	}
	o := h.Have[i]
	ask, done := context.WithTimeout(ctx, askTimeout)
	s, err := h.Operator(o).Status(ask, h.Machine(o))
	done()
	switch {
	case errors.Is(err, identity.ErrStranger): // it is not enrolled yet
		return nil
	case err != nil:
		return err
	case s.Revision == deployments[o.ID].Revision:
		return nil
	}
	return h.soon(ctx, o, deployments[o.ID])
}

// dismissTimeout bounds how long a controller's machine has to end what it runs.
const dismissTimeout = time.Minute

// revisionDismissed is that of a machine that is to run nothing any more.
const revisionDismissed = "dismissed"

// Dismiss has the machine of a service's controller, by its id, end all that it runs, and
// returns when it has: from then on nobody launches what `down` removes. It does nothing
// where there is no such machine, or it was never enrolled; it is an error if that does not
// answer, or takes longer than a minute.
func (h *Handover) Dismiss(ctx context.Context, id string) error {
	i := slices.IndexFunc(h.Have, func(o provision.Object) bool { return o.ID == id && o.Gone == "" && Reachable(o) })
	if i < 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dismissTimeout, fmt.Errorf("%s still runs what it is to end", id))
	defer cancel()
	operator, m := h.Operator(h.Have[i]), h.Machine(h.Have[i])
	ask, done := context.WithTimeout(ctx, askTimeout)
	_, err := operator.Status(ask, m)
	done()
	if errors.Is(err, identity.ErrStranger) {
		return nil
	}
	for err == nil {
		var s agent.Status
		if s, err = operator.Ensure(ctx, m, agent.Deployment{Revision: revisionDismissed}); err == nil && s.Phase != agent.PhasePreparing {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(oneEvery):
		}
	}
	return err
}

// Tend hands over what can be handed over now, and waits for nobody but balancers that
// work: a controller looks again soon. It does less than Run, since `up` may be at work
// with another edition of the service: new replicas are enrolled, balancers get other
// deployments of the edition that they have, certificates are renewed, and all get the
// newest list of revoked ones. Balancers that work are changed one after the other, this
// machine's own first, and no further once one of them does not come back.
func (h *Handover) Tend(ctx context.Context, seen map[string]Seen, deployments map[string]agent.Deployment) error {
	var wg sync.WaitGroup
	var working []provision.Object
	errs := make([]error, len(h.Have))
	for i, o := range h.Have {
		d, due := h.due(seen[o.ID], o, deployments)
		switch {
		case !due:
		case o.Kind == provision.KindBalancer && seen[o.ID].Phase == agent.PhaseReady:
			working = append(working, o)
		default:
			wg.Go(func() { errs[i] = h.once(ctx, o, d) })
		}
	}
	wg.Wait()
	slices.SortStableFunc(working, func(a, b provision.Object) int {
		switch {
		case a.ID == h.Self:
			return -1
		case b.ID == h.Self:
			return 1
		}
		return 0
	})
	for _, o := range working {
		d, _ := h.due(seen[o.ID], o, deployments)
		if err := h.soon(ctx, o, d); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
}

// due is what a controller is to hand to a machine, if anything.
func (h *Handover) due(s Seen, o provision.Object, deployments map[string]agent.Deployment) (d agent.Deployment, due bool) {
	d, wanted := deployments[o.ID]
	switch {
	case !wanted:
		return d, false
	case s.Err != nil: // a balancer is enrolled by operators alone
		return d, errors.Is(s.Err, identity.ErrStranger) && o.Kind == provision.KindReplica
	case o.Kind == provision.KindBalancer && s.Revision != d.Revision && edition(s.Revision) == edition(d.Revision):
		return d, true
	}
	d.Revision = s.Revision // of anything else it is to run what it runs
	return d, s.Enrolled && (h.Operator(o).Renews(s.Status) || s.Revoked < h.Revoked.Number())
}

// edition is the first part of the revision of a balancer's machine.
func edition(revision string) string {
	first, _, _ := strings.Cut(revision, ".")
	return first
}

// once hands a machine over what it is to run. One that boots is no error.
func (h *Handover) once(ctx context.Context, o provision.Object, d agent.Deployment) error {
	ctx, cancel := context.WithTimeout(ctx, tendTimeout)
	defer cancel()
	s, err := h.Operator(o).Ensure(ctx, h.Machine(o), d)
	switch {
	case err == nil:
		h.tell(o.ID, s)
	case permanent(err):
		return err
	default:
		h.tell(o.ID, agent.Status{Phase: agent.PhaseWaiting, Reason: waiting(err)})
	}
	return nil
}

// tendTimeout bounds handing over to one machine: a new deployment takes a balancer a
// second, and one that hangs must not keep others from theirs.
const tendTimeout = 20 * time.Second

// soon hands a balancer another deployment and waits until it works again.
func (h *Handover) soon(ctx context.Context, o provision.Object, d agent.Deployment) error {
	ctx, cancel := context.WithTimeoutCause(ctx, tendTimeout, fmt.Errorf("not ready within %s", tendTimeout))
	defer cancel()
	return h.until(ctx, o, d, oneEvery)
}

// tell reports what changed.
func (h *Handover) tell(id string, s agent.Status) {
	if h.Progress == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if was, known := h.last[id]; known && was.Phase == s.Phase && was.Reason == s.Reason {
		return
	}
	if h.last == nil {
		h.last = map[string]agent.Status{}
	}
	h.last[id] = s
	h.Progress(id, s)
}

// errNotHere is an enrolment where the authority is on another machine.
var errNotHere = errors.New("the service's certificate authority is on another operator's machine, which alone can enrol a new one")

// Operator speaks to the agent of a machine: to a balancer's at once, to a replica's
// through a balancer of its region, since nobody else is let in there.
func (h *Handover) Operator(o provision.Object) *agent.Operator {
	op := &agent.Operator{Party: h.Party, Authority: h.Authority, Revoked: h.Revoked, Now: h.Now}
	if o.Kind == provision.KindReplica && !cloud.IsHere(o.Region) {
		op.Dial = func(ctx context.Context, addr, fingerprint string) (net.Conn, error) {
			return h.through(ctx, o, addr, fingerprint)
		}
	}
	return op
}

// Machine is a machine as its operator addresses it.
func (h *Handover) Machine(o provision.Object) agent.Machine {
	at := cloud.EndpointsOf(o)
	role, address := identity.Balancer, at.Outside.Agent
	switch {
	case o.Kind != provision.KindBalancer:
		role, address = identity.Replica, at.Inside.Agent
	case o.ID == h.Self:
		address = at.Inside.Agent
	}
	return agent.Machine{
		Name: identity.Name{Service: h.Service, Role: role, ID: o.ID}, Address: address,
		Fingerprint: func(ctx context.Context) (string, error) {
			if h.Authority == nil {
				return "", errNotHere
			}
			return h.fingerprint(ctx, o)
		},
	}
}

// fingerprint is that of the key by which a machine is to be enrolled. A balancer is handed more
// than a replica: only one that an operator launched is enrolled, and only by the key that it told
// first.
func (h *Handover) fingerprint(ctx context.Context, o provision.Object) (string, error) {
	isBalancer := o.Kind == provision.KindBalancer || provision.IsBalancerID(o.ID)
	if isBalancer && (h.Enrolments == nil || !h.Enrolments.isLaunched(o)) {
		return "", &StrangersError{Machines: []provision.Object{o}}
	}
	f, err := h.Witness.Fingerprint(ctx, o)
	switch {
	case err != nil:
		return "", err
	case f == "":
		return "", agent.ErrNoFingerprint
	case isBalancer:
		err = h.Enrolments.pinKey(o, f)
	}
	return f, err
}

// errNoRelay is a replica that cannot be reached because no balancer of its region can.
var errNoRelay = errors.New("no balancer of its region lets anybody through yet")

// through opens a connection to a machine by way of the balancer of its region that is
// the first to let it through: one that hangs is not waited for.
func (h *Handover) through(ctx context.Context, o provision.Object, addr, fingerprint string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type opened struct {
		conn net.Conn
		err  error
	}
	answers, relays := make(chan opened), 0
	for _, b := range h.Have {
		if b.Kind != provision.KindBalancer || b.Region != o.Region || b.Gone != "" || !b.PublicIP.IsValid() {
			continue
		}
		relays++
		go func() {
			conn, err := h.Operator(b).Through(h.Machine(b))(ctx, addr, fingerprint)
			select {
			case answers <- opened{conn, err}:
			case <-ctx.Done(): // another one was the first
				if err == nil {
					conn.Close()
				}
			}
		}()
	}
	failure := errNoRelay
	for range relays {
		select {
		case a := <-answers:
			if a.err == nil {
				return a.conn, nil
			}
			if !errors.Is(failure, identity.ErrStranger) { // what one of them found of the machine is more than that others do not answer
				failure = fmt.Errorf("%w: %w", errNoRelay, a.err)
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errNoRelay, context.Cause(ctx))
		}
	}
	return nil, failure
}
