package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/node"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// lookEvery is how often a machine that is not ready is asked again.
const lookEvery = 3 * time.Second

// Handover hands machines what they are to run, and waits until they do.
type Handover struct {
	Service string
	Party   identity.Party
	// Authority certifies machines; nil where it is on another operator's machine, who
	// alone can enrol.
	Authority *identity.Authority
	Witness   provision.Witness
	// Have is the machines with their addresses.
	Have []provision.Object
	// Progress is told of a machine whose phase or reason changed; nil = nobody listens.
	// Calls never overlap.
	Progress func(id string, s node.Status)
	// Every is how often a machine that is not ready is asked again; 0 = 3 s.
	Every time.Duration

	mu   sync.Mutex
	last map[string]node.Status
}

// Run hands each machine its deployment and returns when all are ready, or when ctx
// ends; the error then says of each machine what it lacks. New machines, and those that
// are not ready, get theirs at once, replicas by way of balancers. Those that serve get
// another deployment one after the other, balancers first, and no further once one of
// them does not come back.
func (h *Handover) Run(ctx context.Context, deployments map[string]node.Deployment) error {
	if h.Every == 0 {
		h.Every = lookEvery
	}
	serving, others := h.split(ctx, deployments)
	var wg sync.WaitGroup
	errs := make([]error, len(others))
	for i, o := range others {
		wg.Go(func() { errs[i] = h.until(ctx, o, deployments[o.ID]) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, o := range serving {
		if err := h.until(ctx, o, deployments[o.ID]); err != nil {
			return err
		}
	}
	return nil
}

// askTimeout bounds one question about how a machine does.
const askTimeout = 5 * time.Second

// split finds the machines that serve, and of those the ones that are to run something
// else, balancers first; the others are those that do not serve. A machine that does
// and runs what it should is in neither.
func (h *Handover) split(ctx context.Context, deployments map[string]node.Deployment) (serving, others []provision.Object) {
	states := make([]node.Status, len(h.Have))
	var wg sync.WaitGroup
	for i, o := range h.Have {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			states[i], _ = h.Operator(o).Status(ctx, h.Machine(o)) // one that does not answer does not serve
		})
	}
	wg.Wait()
	for i, o := range h.Have {
		d, wanted := deployments[o.ID]
		switch {
		case !wanted:
		case states[i].Phase != node.PhaseReady:
			others = append(others, o)
		case states[i].Revision != d.Revision || h.Operator(o).Renews(states[i]):
			serving = append(serving, o)
		}
	}
	slices.SortFunc(serving, func(a, b provision.Object) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return serving, others
}

// until hands a machine over what it is to run, again and again until it is ready.
func (h *Handover) until(ctx context.Context, o provision.Object, d node.Deployment) error {
	operator, machine := h.Operator(o), h.Machine(o)
	for {
		s, err := operator.Ensure(ctx, machine, d)
		switch {
		case err == nil && s.Phase == node.PhaseReady:
			h.tell(o.ID, s)
			return nil
		case err == nil:
			h.tell(o.ID, s)
		case permanent(err):
			return err
		default:
			h.tell(o.ID, node.Status{Phase: node.PhaseWaiting, Reason: waiting(err)})
		}
		t := time.NewTimer(h.Every)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			if err == nil {
				err = fmt.Errorf("%s: %s", s.Phase, s.Reason)
			}
			return fmt.Errorf("waiting for %s: %w: %w", o.ID, context.Cause(ctx), err)
		}
	}
}

// permanent says whether waiting does not help.
func permanent(err error) bool {
	var refusal *node.Refusal
	return errors.Is(err, identity.ErrPin) || errors.As(err, &refusal) && refusal.Status != http.StatusBadGateway || errors.Is(err, errNotHere)
}

// waiting says of what a machine that cannot be spoken to yet is short.
func waiting(err error) string {
	switch {
	case errors.Is(err, node.ErrNoFingerprint):
		return "for its machine to boot"
	case errors.Is(err, errNoRelay):
		return "for a balancer of its region, by way of which it is reached"
	}
	return err.Error()
}

// tell reports what changed.
func (h *Handover) tell(id string, s node.Status) {
	if h.Progress == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if was, known := h.last[id]; known && was.Phase == s.Phase && was.Reason == s.Reason {
		return
	}
	if h.last == nil {
		h.last = map[string]node.Status{}
	}
	h.last[id] = s
	h.Progress(id, s)
}

// errNotHere is an enrolment where the authority is on another machine.
var errNotHere = errors.New("the service's certificate authority is on another operator's machine, which alone can enrol a new one")

// Operator speaks to the agent of a machine: to a balancer's at once, to a replica's
// through a balancer of its region, since nobody else is let in there.
func (h *Handover) Operator(o provision.Object) *node.Operator {
	op := &node.Operator{Party: h.Party, Authority: h.Authority}
	if o.Kind == provision.KindReplica {
		op.Dial = func(ctx context.Context, _, addr string) (net.Conn, error) { return h.through(ctx, o, addr) }
	}
	return op
}

// Machine is a machine as its operator addresses it.
func (h *Handover) Machine(o provision.Object) node.Machine {
	role, ip := identity.Balancer, o.PublicIP
	if o.Kind == provision.KindReplica {
		role, ip = identity.Replica, o.PrivateIP
	}
	return node.Machine{
		Name: identity.Name{Service: h.Service, Role: role, ID: o.ID}, Address: at(ip, cloud.PortNode),
		Fingerprint: func(ctx context.Context) (string, error) {
			if h.Authority == nil {
				return "", errNotHere
			}
			f, err := h.Witness.Fingerprint(ctx, o)
			if err == nil && f == "" {
				err = node.ErrNoFingerprint
			}
			return f, err
		},
	}
}

// errNoRelay is a replica that cannot be reached because no balancer of its region can.
var errNoRelay = errors.New("no balancer of its region lets anybody through yet")

// through opens a connection to a machine by way of the balancer of its region that is
// the first to let it through: one that hangs is not waited for.
func (h *Handover) through(ctx context.Context, o provision.Object, addr string) (net.Conn, error) {
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
			conn, err := h.Operator(b).Through(h.Machine(b))(ctx, "tcp", addr)
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
			failure = fmt.Errorf("%w: %w", errNoRelay, a.err)
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errNoRelay, context.Cause(ctx))
		}
	}
	return nil, failure
}
