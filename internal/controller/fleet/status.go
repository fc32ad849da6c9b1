package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// State is how a service in clouds does.
type State string

// The states.
const (
	StateReady    State = "READY"    // every machine works, and `up` would change nothing
	StateStarting State = "STARTING" // no balancer works yet
	StateDegraded State = "DEGRADED" // a part does not work, or is not as `up` would have it
	StateDown     State = "DOWN"     // no balancer works, and none is about to
	StateUnknown  State = "UNKNOWN"  // no balancer works where clouds answered; some did not
)

// Status is a service in clouds as it is now. It is what `status -o json` prints of one.
type Status struct {
	Service string `json:"service"`
	State   State  `json:"state"`
	// CostPerHour is what the machines that were listed cost, in USD.
	CostPerHour float64        `json:"cost_per_hour"`
	Regions     []RegionStatus `json:"regions"`
	// PlainHTTP says that balancers serve plain HTTP to the world: see PlainHTTPWarning.
	PlainHTTP bool `json:"plain_http"`
	// Controller is nil where the machine that it would be on runs none.
	Controller *ControllerStatus `json:"controller"`
	// Store says where state is kept: controller.StoreNotReplicated, controller.StoreExternal.
	Store string `json:"store"`
	// Images are the container images of the models that run in one.
	Images []ImageStatus `json:"images"`
	// Drift is what `up` would change; null where it is not known, and Problems then
	// say why.
	Drift []Change `json:"drift"`
	// DNS is the public name; null where the service has none.
	DNS *DNSStatus `json:"dns"`
	// Problem is what is wrong with what is kept of the service; empty when nothing is.
	Problem string `json:"problem,omitempty"`
	// Peak, Plan and Left say in a line each what is expected of the next hours, what
	// the controller's last plan proposes, and which loads left their forecasts;
	// empty where there is nothing to say.
	Peak string `json:"peak"`
	Plan string `json:"plan"`
	Left string `json:"left"`
	// Strategy is what changes the number of replicas between plans, Donations say
	// in a line what is donated, Events are the last things that the strategy did, a line
	// each.
	Strategy  string   `json:"strategy"`
	Donations string   `json:"donations"`
	Events    []string `json:"events"`
	// Problems say what could not be looked at, a line each.
	Problems []string `json:"problems"`
	// Alerts are what somebody has to act on. What the controller alerts of is its Reason.
	Alerts []telemetry.Alert `json:"alerts"`
}

// PlainHTTPWarning is what people are told of a service whose balancers serve plain HTTP to
// the world; empty for any other.
func PlainHTTPWarning(spec *service.Spec) string {
	if spec.Balancer.TLS != nil || !cloud.Rents(spec) {
		return ""
	}
	return "WARNING: public port: plain HTTP (balancer.insecure); prompts, answers and API keys can be read on the way"
}

// ControllerStatus is the controller, as the agent of its machine sees it.
type ControllerStatus struct {
	ID      string               `json:"id"`
	Machine string               `json:"machine"`
	State   service.ReplicaState `json:"state"`
	Reason  string               `json:"reason"`
	// Admin is where it says how it does, on its own machine.
	Admin string `json:"admin"`
}

// DNSStatus is the public name of a service.
type DNSStatus struct {
	Name     string `json:"name"`
	Zone     string `json:"zone"`
	Provider string `json:"provider"`
	// Server is the machine that answers the name; null where a hosted zone does.
	Server *MachineStatus `json:"server"`
	// Records are what the name server leads to, as it finds them; empty where a
	// hosted zone checks its records itself.
	Records []DNSRecord `json:"records"`
}

// DNSRecord is a balancer as the name server finds it.
type DNSRecord struct {
	ID      string         `json:"id"`
	Region  service.Region `json:"region"`
	Address string         `json:"address"` // with its port
	// Healthy says whether it is given out while others are, too.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason"` // what its last check had against it
}

// ImageStatus is the container image of a model.
type ImageStatus struct {
	Model string `json:"model"`
	Image string `json:"image"`
	// Pinned says that it is named by its digest, so that every machine gets the same.
	Pinned bool `json:"pinned"`
}

// imagesOf are the container images of a service's models.
func imagesOf(spec *service.Spec) []ImageStatus {
	images := []ImageStatus{}
	for _, m := range spec.Models {
		if image := imageOf(&m.Engine); image != "" {
			images = append(images, ImageStatus{m.Name, image, service.PinsImage(image)})
		}
	}
	return images
}

// RegionStatus is one region: of the service.yaml, or one in which something is left.
type RegionStatus struct {
	Name      service.Region  `json:"name"`
	Endpoint  string          `json:"endpoint"` // of its first balancer with an address; empty when none has
	Balancers []MachineStatus `json:"balancers"`
	Replicas  []MachineStatus `json:"replicas"`
}

// MachineStatus is one machine.
type MachineStatus struct {
	ID     string               `json:"id"`
	State  service.ReplicaState `json:"state"`
	Phase  agent.Phase          `json:"phase"` // as its agent says; empty when that said nothing
	Reason string               `json:"reason"`
	// Endpoint and Admin are a balancer's public and admin base URLs; URL is where a
	// replica lets balancers in.
	Endpoint string `json:"endpoint,omitempty"`
	Admin    string `json:"admin,omitempty"`
	// Certificate is a balancer's public listener's; nil without TLS, or where it did not tell.
	Certificate *telemetry.Certificate `json:"certificate,omitempty"`
	URL         string                 `json:"url,omitempty"`
	Model       string                 `json:"model,omitempty"`
	GPU         string                 `json:"gpu,omitempty"`
	// Offering is what it runs on, CostPerHour what it costs in USD; 0 = not known.
	Offering    *provision.Offering `json:"offering"`
	CostPerHour float64             `json:"cost_per_hour"`
	// Balancer is the one that reports on a replica; empty when none does.
	Balancer string `json:"balancer,omitempty"`
	// PID is the process of a machine on this computer.
	PID string `json:"pid,omitempty"`
	// Wanted is false of what the service.yaml does not ask for any more.
	Wanted bool `json:"wanted"`
	// Drained says that a replica is sent nothing because somebody, or a plan, wants it so;
	// Donated that it is donated.
	Drained bool `json:"drained"`
	Donated bool `json:"donated"`
	// InFlight is how many requests a replica's machine has let in that have not ended.
	InFlight int `json:"in_flight"`
}

// Change is a change as documents tell it.
type Change struct {
	Action      provision.Action `json:"action"`
	ID          string           `json:"id"`
	Kind        provision.Kind   `json:"kind"`
	Region      service.Region   `json:"region"`
	Reason      string           `json:"reason"`
	CostPerHour float64          `json:"cost_per_hour"` // more than now, in USD
	// PriceFrom says where the price of a machine to launch is from; empty without one.
	PriceFrom string `json:"price_from"`
}

// Told are changes as documents tell them; never nil.
func Told(changes provision.Changes) []Change {
	told := []Change{}
	for _, c := range changes {
		one := Change{c.Action, c.ID(), c.Kind(), c.Region(), c.Reason, c.CostPerHour, ""}
		if len(c.Want.Offers) > 0 {
			one.PriceFrom = c.Want.Offers[0].PriceFrom
		}
		told = append(told, one)
	}
	return told
}

// answer is what the agent of a machine said, or why it said nothing.
type answer struct {
	status agent.Status
	err    error
	// certificate is the public listener's of a balancer, snapshot what it says of the service; nil
	// where it is not known.
	certificate *telemetry.Certificate
	snapshot    *telemetry.Snapshot
}

// ErrEarlier says that a process is one that this version cannot keep.
var ErrEarlier = errors.New("an earlier version of skyserve brought it up, in another way")

// IsEarlier says whether an object is a process on this computer of a version in which those were
// no machines: without an agent.
func IsEarlier(o provision.Object) bool {
	return o.Gone == "" && o.Endpoints == (provision.Endpoints{}) && (cloud.IsHere(o.Region) || o.Kind == provision.KindController)
}

// stateOf is how a machine does, and why.
func stateOf(o provision.Object, a answer) (service.ReplicaState, string) {
	var strangers *StrangersError
	switch {
	case errors.As(a.err, &strangers):
		return service.StateFailed, "no 'skyserve up' launched it: it is handed nothing"
	case o.Gone != "" && o.Offering != nil && o.Offering.Capacity == service.CapacitySpot:
		return service.StateInterrupted, o.Gone
	case o.Gone != "":
		return service.StateFailed, o.Gone
	case IsEarlier(o):
		return service.StateNotReady, ErrEarlier.Error()
	case !Reachable(o):
		return service.StateProvisioning, "it has no address yet"
	case errors.Is(a.err, identity.ErrStranger):
		return service.StateStarting, "it has no certificate of the service that is good: 'skyserve up' hands it one"
	case a.err != nil:
		return service.StateNotReady, a.err.Error()
	}
	switch a.status.Phase {
	case agent.PhaseReady:
		if c := a.certificate; c != nil && c.Waiting != "" {
			return service.StateStarting, "waiting for certificate: " + c.Waiting
		} else if c != nil && c.Problem != "" {
			return service.StateReady, fmt.Sprintf("no newer certificate can be used, the one in use ends %s: %s", c.ExpiresAt.Format(time.DateOnly), c.Problem)
		}
		return service.StateReady, a.status.Reason
	case agent.PhaseDraining:
		return service.StateDraining, a.status.Reason
	case agent.PhaseInterrupted:
		return service.StateInterrupted, a.status.Reason
	case agent.PhaseWaiting, agent.PhasePreparing, agent.PhaseImage, agent.PhaseStarting, agent.PhaseWeights, agent.PhaseFailed:
	}
	switch {
	case lacksController(a.status.Units):
		return service.StateReady, ""
	case a.status.Phase == agent.PhaseFailed:
		return service.StateFailed, a.status.Reason
	}
	return service.StateStarting, strings.TrimSuffix(string(a.status.Phase)+": "+a.status.Reason, ": ")
}

// lacksController says whether all that a machine runs is ready but the controller, which is
// told of by itself: its balancer serves all the same.
func lacksController(units []agent.UnitStatus) bool {
	lacks := false
	for _, u := range units {
		if !u.Ready && u.Name != UnitController {
			return false
		}
		lacks = lacks || !u.Ready
	}
	return lacks
}

// Reachable says whether a machine has the address by which its agent is asked.
func Reachable(o provision.Object) bool {
	at := cloud.EndpointsOf(o)
	if o.Kind == provision.KindBalancer {
		return at.Outside.Agent != ""
	}
	return at.Inside.Agent != ""
}

// machineStatus is a machine with what it said.
func machineStatus(spec *service.Spec, o provision.Object, a answer) MachineStatus {
	m := MachineStatus{
		ID: o.ID, Phase: a.status.Phase, Model: o.Labels["model"], GPU: gpuOf(o),
		Offering: o.Offering, CostPerHour: o.CostPerHour, InFlight: a.status.InFlight, PID: o.Labels[labelPID], Wanted: true,
	}
	m.State, m.Reason = stateOf(o, a)
	m.Certificate = a.certificate
	var strangers *StrangersError
	switch {
	case o.Gone != "" && cloud.IsHere(o.Region):
		m.Endpoint, m.Admin, m.URL = "", "", ""
		if o.Kind != provision.KindBalancer {
			m.URL = o.Address
		}
	case !Reachable(o) || errors.As(a.err, &strangers): // nobody is led to one that is not ours
	case o.Kind == provision.KindBalancer:
		m.Endpoint, m.Admin = PublicURL(spec, o), AdminURL(o)
		if cloud.IsHere(o.Region) {
			m.Admin = o.Admin // which takes plain HTTP too
		}
	case cloud.IsHere(o.Region):
		m.URL = o.Address // the engine itself
	default:
		m.URL = engineURL(o)
	}
	return m
}

// controllerOf is the controller among machines, with what they said.
func controllerOf(spec *service.Spec, machines []provision.Object, answers []answer) *ControllerStatus {
	c := &ControllerStatus{ID: provision.ControllerID, Machine: cloud.ControllerMachine(spec), State: service.StateFailed, Reason: "its machine is gone"}
	i := slices.IndexFunc(machines, func(o provision.Object) bool { return o.ID == c.Machine && o.Gone == "" })
	if i < 0 {
		return c
	}
	if c.State, c.Reason = stateOf(machines[i], answers[i]); answers[i].err != nil || !Reachable(machines[i]) {
		return c
	}
	c.Admin = "http://" + cloud.EndpointsOf(machines[i]).Controller
	units := answers[i].status.Units
	u := slices.IndexFunc(units, func(u agent.UnitStatus) bool { return u.Name == UnitController })
	if u < 0 {
		return nil
	}
	switch c.Reason = units[u].Reason; {
	case units[u].Ready:
		c.State = service.StateReady
	case units[u].Running:
		c.State = service.StateStarting
	default:
		c.State = service.StateFailed
	}
	return c
}

// regionsOf sorts machines, with what they said, into the regions of the file and then
// those in which something is left.
func regionsOf(spec *service.Spec, machines []provision.Object, answers []answer) []RegionStatus {
	order := cloud.Regions(spec)
	for _, o := range machines {
		if !slices.Contains(order, o.Region) {
			order = append(order, o.Region)
		}
	}
	regions := []RegionStatus{}
	for _, name := range order {
		r := RegionStatus{Name: name, Balancers: []MachineStatus{}, Replicas: []MachineStatus{}}
		for i, o := range machines {
			if o.Region != name || o.Kind == provision.KindNameServer {
				continue
			}
			m := machineStatus(spec, o, answers[i])
			if o.Kind == provision.KindReplica {
				r.Replicas = append(r.Replicas, m)
				continue
			}
			r.Balancers = append(r.Balancers, m)
			r.Endpoint = cmp.Or(r.Endpoint, m.Endpoint)
		}
		regions = append(regions, r)
	}
	return regions
}

// overall is how a service does; whole says that every region was listed.
func (s *Status) overall(whole bool) State {
	well, serving, coming := whole && len(s.Drift) == 0 && s.Problem == "", false, false
	if s.DNS != nil && s.DNS.Server != nil && s.DNS.Server.State != service.StateReady {
		well = false
	}
	if c := s.Controller; c != nil && c.State != service.StateReady {
		well = false
	}
	for _, r := range s.Regions {
		for _, m := range slices.Concat(r.Balancers, r.Replicas) {
			well = well && (m.State == service.StateReady || m.Drained || m.Donated || !m.Wanted)
		}
		for _, b := range r.Balancers {
			serving = serving || b.State == service.StateReady
			coming = coming || b.State == service.StateStarting || b.State == service.StateProvisioning
		}
	}
	switch {
	case serving && well:
		return StateReady
	case serving:
		return StateDegraded
	case coming:
		return StateStarting
	case !whole:
		return StateUnknown
	}
	return StateDown
}

// labelPID is the label by which a machine on this computer tells its process.
const labelPID = "pid"
