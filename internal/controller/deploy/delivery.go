package deploy

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

// Polling intervals of machines that are not ready. shortPollInterval is the initial interval for a
// machine that responds, which is usually almost ready, and the interval for a serving machine that
// applies another deployment. pollInterval is the interval for all others.
const (
	pollInterval      = 3 * time.Second
	shortPollInterval = 300 * time.Millisecond
	localPollInterval = 50 * time.Millisecond // a machine on this computer starts within a second
)

// Delivery delivers deployments to machines and waits until they run.
type Delivery struct {
	Service string
	Party   identity.Party
	// Authority certifies machines; nil where it is on the machine of another operator. Only that
	// operator can enrol machines.
	Authority *identity.Authority
	// Enrolments are the balancers that may be enrolled; nil = none.
	Enrolments *Enrolments
	// Revoked is the revocation list for machines.
	Revoked  identity.Revoked
	Attestor provision.KeyAttestor
	// Machines contains the machines with their addresses.
	Machines []provision.Object
	// OnChange is called when a machine's phase or reason changes; may be nil. Calls never overlap.
	OnChange func(id string, s agent.Status)
	// OnStatus is called with every status of a machine that Deliver waits for; may be nil. Calls never
	// overlap.
	OnStatus func(id string, s agent.Status)
	// Self is the ID of the machine of this program, which is reached at its private address; empty
	// = none.
	Self string
	// Awaited selects the machines that Deliver waits for; nil = all. The others receive one attempt
	// once the awaited ones are ready, and are left to the controller.
	Awaited func(provision.Object) bool
	// UntilDelivered makes Deliver wait until the awaited machines that do not serve yet have their
	// deployment, instead of until they are ready.
	UntilDelivered bool
	// Launched selects the machines that the caller has launched; nil = all. See Deliver.
	Launched func(id string) bool
	// BalancersOnly makes AwaitServing wait for balancers and the name server only.
	BalancersOnly bool
	// OnlyReplicas are the replicas that Deliver and AwaitServing deliver to and wait for; nil = all. A change of some
	// replicas does not depend on the others: one that does not respond must not prevent that another one is drained.
	OnlyReplicas map[string]bool
	// Now is the clock for renewing certificates; nil = time.Now.
	Now func() time.Time

	// ensurer replaces the delivery over the network; set only in tests.
	ensurer func(ctx context.Context, o provision.Object, d agent.Deployment) (agent.Status, error)

	kept agent.Connections // for reading statuses

	mu           sync.Mutex
	lastStatuses map[string]agent.Status
}

// Deliver delivers each machine's deployment and returns when all are ready (or those of Awaited), or when
// ctx ends, with an error that contains the missing step of each machine. New machines, those that are not ready and those
// that lack their controller receive their deployments immediately, replicas through balancers. Serving machines receive
// theirs one after the other, balancers first, once the others are ready, so that a configuration that does not work reaches
// none of them; they do not wait for replicas that were not Launched, which have stopped working before. Deliver stops at
// the first serving machine that does not become ready again. A replica is drained before its delivery and resumed afterwards. A machine that has
// failed permanently is not awaited any longer: once all others are ready, the error contains a
// *StartFailedError for each, see FailedStarts. A change of replicas (OnlyReplicas) does not wait for balancers that do not
// respond: once all others are ready, the error is an *UnconfirmedError.
func (dl *Delivery) Deliver(ctx context.Context, deployments map[string]agent.Deployment) error {
	return dl.deliverFrom(ctx, dl.ReadStatuses(ctx), deployments)
}

// deliverFrom is Deliver with the statuses of the machines.
func (dl *Delivery) deliverFrom(ctx context.Context, seen map[string]AgentReport, deployments map[string]agent.Deployment) error {
	serving, others := dl.splitServing(seen, deployments)
	awaited, left := dl.splitAwaited(others)
	stuck, hung, launched := dl.splitStuck(seen, awaited)
	awaitEach := func(ctx context.Context, machines []provision.Object) error {
		return dl.deliverEach(machines, func(o provision.Object) error {
			return dl.deliverUntil(ctx, o, deployments[o.ID], pollIntervalOf(o), 0, func(s agent.Status) bool {
				return dl.UntilDelivered || s.Phase == agent.PhaseReady
			})
		})
	}
	stuckCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var waiting sync.WaitGroup
	var stuckErr, hungErr error
	waiting.Go(func() { stuckErr = awaitEach(stuckCtx, stuck) })
	waiting.Go(func() {
		hungErr = dl.deliverEach(hung, func(o provision.Object) error { return dl.deliverWithin(ctx, o, deployments[o.ID], lostTimeout, 0) })
	})
	if err := awaitEach(ctx, launched); err != nil {
		waiting.Wait()
		return errors.Join(err, stuckErr, hungErr)
	}
	err := dl.deliverEach(left, func(o provision.Object) error { return dl.deliverOnce(ctx, o, deployments[o.ID]) })
	if err == nil {
		err = dl.deliverServing(ctx, seen, serving, deployments)
	}
	if err != nil {
		cancel()
		waiting.Wait()
		return err
	}
	waiting.Wait()
	if stuckErr == nil && hungErr != nil {
		return &UnconfirmedError{hungErr}
	}
	return errors.Join(stuckErr, hungErr)
}

// deliverServing delivers the deployments of serving machines one after the other, and stops at the first that does not
// become ready again.
func (dl *Delivery) deliverServing(ctx context.Context, seen map[string]AgentReport, serving []provision.Object, deployments map[string]agent.Deployment) error {
	defer dl.Resume(context.WithoutCancel(ctx), dl.replicas(deployments)) // including those that an earlier run drained and did not resume
	for _, o := range serving {
		if o.Kind == provision.KindReplica && seen[o.ID].Revision != deployments[o.ID].Revision {
			dl.reportStatus(o.ID, agent.Status{Phase: agent.PhaseDraining, Reason: "before an update"})
			dl.Drain(ctx, o)
		}
		if err := dl.deliverUntilReady(ctx, o, deployments[o.ID], shortPollInterval); err != nil {
			return err
		}
		if o.Kind == provision.KindReplica {
			dl.ResumeAndWait(ctx, o)
		}
	}
	return nil
}

// splitAwaited separates machines into those that Deliver waits for, and the others.
func (dl *Delivery) splitAwaited(all []provision.Object) (awaited, left []provision.Object) {
	for _, o := range all {
		if dl.Awaited == nil || dl.Awaited(o) {
			awaited = append(awaited, o)
		} else {
			left = append(left, o)
		}
	}
	return awaited, left
}

// splitStuck separates the replicas that were not Launched, and during a change of replicas the balancers that do not
// respond, from other machines that are not ready.
func (dl *Delivery) splitStuck(seen map[string]AgentReport, all []provision.Object) (stuck, hung, launched []provision.Object) {
	for _, o := range all {
		err := seen[o.ID].Err
		switch {
		case o.Kind == provision.KindReplica && dl.Launched != nil && !dl.Launched(o.ID):
			stuck = append(stuck, o)
		case o.Kind == provision.KindBalancer && dl.OnlyReplicas != nil && err != nil && !isPermanent(err):
			hung = append(hung, o)
		default:
			launched = append(launched, o)
		}
	}
	return stuck, hung, launched
}

// deliverEach calls do for each machine concurrently, and joins the errors.
func (dl *Delivery) deliverEach(machines []provision.Object, do func(provision.Object) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(machines))
	for i, o := range machines {
		wg.Go(func() { errs[i] = do(o) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// pollIntervalOf returns the polling interval of a machine.
func pollIntervalOf(o provision.Object) time.Duration {
	if cloud.RunsOnThisComputer(o.Region) {
		return localPollInterval
	}
	return pollInterval
}

// includes reports whether a replica is one of OnlyReplicas.
func (dl *Delivery) includes(id string) bool { return dl.OnlyReplicas == nil || dl.OnlyReplicas[id] }

// replicas returns the replicas with a deployment.
func (dl *Delivery) replicas(deployments map[string]agent.Deployment) []provision.Object {
	return slices.DeleteFunc(slices.Clone(dl.Machines), func(o provision.Object) bool {
		_, wanted := deployments[o.ID]
		return o.Kind != provision.KindReplica || !wanted
	})
}

// statusTimeout is the timeout of one status request.
const statusTimeout = 5 * time.Second

// AgentReport is the status of a machine's agent, or the error of reading it.
type AgentReport struct {
	agent.Status
	Err error
}

// ReadStatuses reads the status of all reachable machines concurrently, each within 5 s.
func (dl *Delivery) ReadStatuses(ctx context.Context) map[string]AgentReport {
	return dl.readStatusesOf(ctx, dl.Machines)
}

// readStatusesOf is ReadStatuses of some machines.
func (dl *Delivery) readStatusesOf(ctx context.Context, machines []provision.Object) map[string]AgentReport {
	var mu sync.Mutex
	var wg sync.WaitGroup
	all := map[string]AgentReport{}
	for _, o := range machines {
		if !o.Kind.IsMachine() || o.TerminatedReason != "" || !Reachable(o) {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, statusTimeout)
			defer cancel()
			s, err := dl.AgentClient(o).Status(ctx, dl.Machine(o))
			mu.Lock()
			defer mu.Unlock()
			all[o.ID] = AgentReport{s, err}
		})
	}
	wg.Wait()
	return all
}

// splitServing returns the serving machines that need another deployment, balancers first, and the machines that are
// not serving. It omits serving machines with the current deployment, and machines that their cloud is interrupting,
// which would never become ready. A machine that serves without its controller counts as not serving: the controllers of
// the others may not become ready before its member of the store gives them a majority.
func (dl *Delivery) splitServing(seen map[string]AgentReport, deployments map[string]agent.Deployment) (serving, others []provision.Object) {
	for _, o := range dl.Machines {
		d, wanted := deployments[o.ID]
		s := seen[o.ID] // an unresponsive machine has no phase
		switch {
		case !wanted || s.Phase == agent.PhaseInterrupted || o.Kind == provision.KindReplica && !dl.includes(o.ID):
		case s.Phase != agent.PhaseReady, hasController(d) && !runsController(s.Status):
			others = append(others, o)
		case s.Revision != d.Revision || s.Revoked < dl.Revoked.Number() || dl.AgentClient(o).NeedsRenewal(s.Status):
			serving = append(serving, o)
		}
	}
	slices.SortFunc(serving, func(a, b provision.Object) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return serving, others
}

// deliverUntilReady delivers a machine's deployment repeatedly until the machine is ready.
func (dl *Delivery) deliverUntilReady(ctx context.Context, o provision.Object, d agent.Deployment, every time.Duration) error {
	return dl.deliverUntil(ctx, o, d, every, 0, isReady)
}

// isReady reports whether a machine is ready.
func isReady(s agent.Status) bool { return s.Phase == agent.PhaseReady }

// deliverUntil delivers a machine's deployment repeatedly until its status is done. A machine that
// responds, or is reached through a balancer, is polled at shortPollInterval at first, then with
// backoff: it may load weights for minutes. One that has not responded for lostAfter is an error; 0 = no limit.
func (dl *Delivery) deliverUntil(ctx context.Context, o provision.Object, d agent.Deployment, every, lostAfter time.Duration, done func(agent.Status) bool) error {
	soon, watch := min(every, shortPollInterval), failureWatch{}
	responded := time.Now()
	for {
		wait := every
		s, err := dl.ensure(ctx, o, d)
		if err == nil {
			responded = time.Now()
		}
		switch {
		case err == nil && done(s):
			dl.reportStatus(o.ID, s)
			return nil
		case err == nil:
			dl.reportStatus(o.ID, s)
			if failure := watch.check(o, s); failure != nil {
				return failure
			}
			wait, soon = soon, min(every, 2*soon)
		case isPermanent(err):
			return err
		default:
			dl.reportStatus(o.ID, agent.Status{Phase: agent.PhaseWaiting, Reason: waitingReason(err)})
			if errors.Is(err, errNoRelay) { // this attempt made no call to the cloud
				wait, soon = soon, min(every, 2*soon)
			}
			if silent := time.Since(responded); lostAfter > 0 && silent >= lostAfter {
				return fmt.Errorf("waiting for %s: no response for %s: %w", o.ID, lostAfter, err)
			}
		}
		if !sleep(ctx, wait) {
			if err == nil {
				err = fmt.Errorf("%s: %s", s.Phase, s.Reason)
			}
			return fmt.Errorf("waiting for %s: %w: %w", o.ID, context.Cause(ctx), err)
		}
	}
}

// isPermanent reports whether an error persists when the delivery is retried.
func isPermanent(err error) bool {
	var refusal *agent.StatusError
	var unknownMachines *UnknownMachinesError
	return errors.Is(err, identity.ErrPin) || errors.As(err, &unknownMachines) || errors.As(err, &refusal) && refusal.Status != http.StatusBadGateway || errors.Is(err, errNoAuthority)
}

// WaitingForKey is the reason of a machine in the phase "waiting" whose cloud does not report its key yet: the
// machine is still booting.
const WaitingForKey = "for its machine to boot"

// waitingReason returns the reason of a machine in the phase "waiting" to which no connection is possible yet.
func waitingReason(err error) string {
	switch {
	case errors.Is(err, agent.ErrNoFingerprint):
		return WaitingForKey
	case errors.Is(err, errNoRelay):
		return "for a balancer of its region, through which it is reached"
	}
	return "for its agent: " + err.Error()
}

// DeliverDue makes the deliveries of a controller, which calls it in each iteration. It waits only for
// serving balancers. It does less than Deliver, because `up` may be running with another input
// (see Deployments): it enrols new replicas and the balancers of Enrolments, delivers new deployments to the balancers
// that have the hash of its own input, renews certificates, and delivers the newest revocation list to all machines. Serving
// balancers are updated one after the other, the balancer on this machine first, until one does not
// become ready again.
func (dl *Delivery) DeliverDue(ctx context.Context, seen map[string]AgentReport, deployments map[string]agent.Deployment) error {
	var wg sync.WaitGroup
	var working []provision.Object
	errs := make([]error, len(dl.Machines))
	for i, o := range dl.Machines {
		d, due := dl.dueDeployment(seen[o.ID], o, deployments)
		switch {
		case !due:
		case o.Kind == provision.KindBalancer && seen[o.ID].Phase == agent.PhaseReady:
			working = append(working, o)
		default:
			wg.Go(func() { errs[i] = dl.deliverOnce(ctx, o, d) })
		}
	}
	wg.Wait()
	slices.SortStableFunc(working, func(a, b provision.Object) int {
		switch {
		case a.ID == dl.Self:
			return -1
		case b.ID == dl.Self:
			return 1
		}
		return 0
	})
	for _, o := range working {
		d, _ := dl.dueDeployment(seen[o.ID], o, deployments)
		if err := dl.deliverAndWait(ctx, o, d); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
}

// dueDeployment returns the deployment that a controller delivers to a machine, if any.
func (dl *Delivery) dueDeployment(s AgentReport, o provision.Object, deployments map[string]agent.Deployment) (d agent.Deployment, due bool) {
	d, wanted := deployments[o.ID]
	switch {
	case !wanted:
		return d, false
	case s.Err != nil: // a balancer is enrolled only by the process that launched it
		return d, errors.Is(s.Err, identity.ErrUntrusted) && (o.Kind == provision.KindReplica || dl.hasLaunched(o))
	case o.Kind == provision.KindBalancer && s.Revision == "" && dl.hasLaunched(o):
		return d, true
	case o.Kind == provision.KindBalancer && s.Revision != d.Revision && inputHashOf(s.Revision) == inputHashOf(d.Revision):
		return d, true
	}
	d.Revision = s.Revision // everything else keeps its deployment
	return d, s.Enrolled && (dl.AgentClient(o).NeedsRenewal(s.Status) || s.Revoked < dl.Revoked.Number())
}

// hasLaunched reports whether a balancer is in the record of this process.
func (dl *Delivery) hasLaunched(o provision.Object) bool {
	return o.Kind == provision.KindBalancer && dl.Enrolments != nil && dl.Enrolments.isLaunched(o)
}

// inputHashOf returns the first part of the revision of a balancer's machine: see DeploymentInput.inputHash.
func inputHashOf(revision string) string {
	first, _, _ := strings.Cut(revision, ".")
	return first
}

// deliverOnce delivers a machine's deployment. A booting machine is no error.
func (dl *Delivery) deliverOnce(ctx context.Context, o provision.Object, d agent.Deployment) error {
	ctx, cancel := context.WithTimeout(ctx, deliveryTimeout)
	defer cancel()
	s, err := dl.ensure(ctx, o, d)
	switch {
	case err == nil:
		dl.reportStatus(o.ID, s)
	case isPermanent(err):
		return err
	default:
		dl.reportStatus(o.ID, agent.Status{Phase: agent.PhaseWaiting, Reason: waitingReason(err)})
	}
	return nil
}

// deliveryTimeout is the timeout of a delivery to one machine: a balancer applies a new deployment in
// a second, and a machine that does not respond must not delay the others.
const deliveryTimeout = 20 * time.Second

// lostTimeout is the time without a response after which a balancer that had just responded counts as lost, and the time of
// the second attempt at one that has not responded to the first.
const lostTimeout = 3 * time.Second

// deliverAndWait delivers another deployment to a serving balancer and waits until it is ready again. It does not wait for
// one that is lost meanwhile: its replacement is more urgent.
func (dl *Delivery) deliverAndWait(ctx context.Context, o provision.Object, d agent.Deployment) error {
	return dl.deliverWithin(ctx, o, d, deliveryTimeout, lostTimeout)
}

// deliverWithin is deliverAndWait with other timeouts.
func (dl *Delivery) deliverWithin(ctx context.Context, o provision.Object, d agent.Deployment, timeout, lostAfter time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not ready within %s", timeout))
	defer cancel()
	return dl.deliverUntil(ctx, o, d, shortPollInterval, lostAfter, isReady)
}

// reportStatus reports a changed status.
func (dl *Delivery) reportStatus(id string, s agent.Status) {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	if dl.OnStatus != nil {
		dl.OnStatus(id, s)
	}
	if dl.OnChange == nil {
		return
	}
	if was, known := dl.lastStatuses[id]; known && was.Phase == s.Phase && was.Reason == s.Reason {
		return
	}
	if dl.lastStatuses == nil {
		dl.lastStatuses = map[string]agent.Status{}
	}
	dl.lastStatuses[id] = s
	dl.OnChange(id, s)
}

// errNoAuthority is the error of an enrolment while the CA key is on another machine.
var errNoAuthority = errors.New("the key of the service's CA is on another operator's machine: run 'skyserve up' there to enrol new machines")

// AgentClient returns the client of a machine's agent. A balancer's agent is reached directly, a replica's
// through a balancer of its region, since only balancers can connect to it.
func (dl *Delivery) AgentClient(o provision.Object) *agent.Client {
	client := &agent.Client{Party: dl.Party, Authority: dl.Authority, Revoked: dl.Revoked, Now: dl.Now, Kept: &dl.kept}
	if o.Kind == provision.KindReplica && !cloud.RunsOnThisComputer(o.Region) {
		client.Dial = func(ctx context.Context, addr, fingerprint string) (net.Conn, error) {
			return dl.dialThroughBalancer(ctx, o, addr, fingerprint)
		}
	}
	return client
}

// Machine returns the address of a machine's agent for AgentClient.
func (dl *Delivery) Machine(o provision.Object) agent.Target {
	at := cloud.EndpointsOf(o)
	role, address := identity.Balancer, at.Advertised.Agent
	switch {
	case o.Kind != provision.KindBalancer:
		role, address = identity.Replica, at.Listen.Agent
	case o.ID == dl.Self:
		address = at.Listen.Agent
	}
	return agent.Target{
		Name: identity.Name{Service: dl.Service, Role: role, ID: o.ID}, Address: address,
		Fingerprint: func(ctx context.Context) (string, error) {
			if dl.Authority == nil {
				return "", errNoAuthority
			}
			return dl.fingerprint(ctx, o)
		},
	}
}

// fingerprint returns the fingerprint of the key with which a machine is enrolled. A balancer
// receives more secrets than a replica: only a recorded one is enrolled, and only with the first
// key that it reported.
func (dl *Delivery) fingerprint(ctx context.Context, o provision.Object) (string, error) {
	isBalancer := o.Kind == provision.KindBalancer || provision.IsBalancerID(o.ID)
	if isBalancer && !dl.hasLaunched(o) {
		return "", &UnknownMachinesError{Machines: []provision.Object{o}}
	}
	f, err := dl.Attestor.Fingerprint(ctx, o)
	switch {
	case err != nil:
		return "", err
	case f == "":
		return "", agent.ErrNoFingerprint
	case isBalancer:
		err = dl.Enrolments.pinKey(o, f)
	}
	return f, err
}

// errNoRelay means that no balancer of a replica's region could connect to the replica.
var errNoRelay = errors.New("no balancer of its region relays connections yet")

// dialThroughBalancer opens a connection to a machine through the first balancer of its region that relays it,
// without waiting for unresponsive ones.
func (dl *Delivery) dialThroughBalancer(ctx context.Context, o provision.Object, addr, fingerprint string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type opened struct {
		conn net.Conn
		err  error
	}
	results, relays := make(chan opened), 0
	for _, b := range dl.Machines {
		if b.Kind != provision.KindBalancer || b.Region != o.Region || b.TerminatedReason != "" || !b.PublicIP.IsValid() {
			continue
		}
		relays++
		go func() {
			conn, err := dl.AgentClient(b).DialThrough(dl.Machine(b))(ctx, addr, fingerprint)
			select {
			case results <- opened{conn, err}:
			case <-ctx.Done(): // another balancer connected first
				if err == nil {
					conn.Close()
				}
			}
		}()
	}
	failure := errNoRelay
	for range relays {
		select {
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			if !errors.Is(failure, identity.ErrUntrusted) { // a response about the machine takes precedence over balancers that do not respond
				failure = fmt.Errorf("%w: %w", errNoRelay, r.err)
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errNoRelay, context.Cause(ctx))
		}
	}
	return nil, failure
}

// UnconfirmedError means that all machines have their deployments except balancers that do not respond. A controller
// delivers theirs once they respond.
type UnconfirmedError struct{ Err error }

// Error describes the failure.
func (e *UnconfirmedError) Error() string {
	return "not confirmed by all balancers: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *UnconfirmedError) Unwrap() error { return e.Err }
