package deploy

import (
	"cmp"
	"encoding/json"
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

// ServiceState is the overall state of a service.
type ServiceState string

// The states.
const (
	StateReady    ServiceState = "READY"    // every machine is ready and matches the desired state
	StateStarting ServiceState = "STARTING" // no balancer is ready yet
	StateDegraded ServiceState = "DEGRADED" // a part is not ready, or differs from the desired state
	StateDown     ServiceState = "DOWN"     // no balancer is ready or starting
	StateUnknown  ServiceState = "UNKNOWN"  // no balancer is ready in the clouds that responded; some did not
)

// ServiceStatus is the current status of a service, which `status -o json` prints.
type ServiceStatus struct {
	Service string       `json:"service"`
	State   ServiceState `json:"state"`
	// CostPerHour is the cost of the listed machines in USD.
	CostPerHour float64        `json:"cost_per_hour"`
	Regions     []RegionStatus `json:"regions"`
	// PlainHTTP is true where balancers serve plain HTTP on the public internet: see
	// PlainHTTPWarning.
	PlainHTTP bool `json:"plain_http"`
	// Controller is the status of the controller; nil if no machine runs one.
	Controller *ControllerStatus `json:"controller"`
	// Leadership is which controller leads; nil where no balancer reports it.
	Leadership *telemetry.ControllerState `json:"leadership"`
	// Store is the state of the store in one line: controller.StoreNotReplicated,
	// controller.StoreExternal, controller.StoreStarting, the members of a cluster, or "unknown" if the controller on this
	// computer does not respond. StoreState is the same in detail; nil where no balancer reports it.
	Store      string                `json:"store"`
	StoreState *telemetry.StoreState `json:"store_state"`
	// Images are the container images of the models.
	Images []ImageStatus `json:"images"`
	// Reservations are those that the service names by id, as their clouds report them.
	Reservations []provision.Reservation `json:"reservations"`
	// Drift contains the changes that `up` would make; null where they are unknown, with the reason
	// in Problems.
	Drift []StatusChange `json:"drift"`
	// DNS is the public name; null where the service has none.
	DNS *DNSStatus `json:"dns"`
	// StateError is the error in the stored state of the service; empty without an error.
	StateError string `json:"problem,omitempty"`
	// Peak, Plan and Deviation are one line each: the forecast of the next hours, the controller's last
	// plan, and the loads that deviate from their forecasts; empty where there is nothing to
	// report.
	Peak      string `json:"peak"`
	Plan      string `json:"plan"`
	Deviation string `json:"deviation"`
	// Strategy is the scaling strategy between plans, Donations a line about donated replicas,
	// Events the last actions of the strategy, one line each.
	Strategy  string `json:"strategy"`
	Donations string `json:"donations"`
	// Batches are the lines about batches that have not ended.
	Batches []string `json:"batches"`
	// Cold contains a line for each model that scales to zero and has no ready replica, or that has no replica and
	// gets one only from an operator.
	Cold   []string `json:"cold"`
	Events []string `json:"events"`
	// Launches is what the controller may launch now and what failed before; null where it is unknown.
	Launches *telemetry.Launches `json:"launches"`
	// LastFailure is a line about the last failure of the past hour; empty without one.
	LastFailure string `json:"last_failure"`
	// Problems are the parts that could not be observed, one line each.
	Problems []string `json:"problems"`
	// Alerts are the current alerts. Controller.Alerts are those that the controller reports to its machine.
	Alerts []telemetry.Alert `json:"alerts"`
}

// MarshalJSON adds the former key of Deviation.
func (s ServiceStatus) MarshalJSON() ([]byte, error) {
	type plain ServiceStatus
	return json.Marshal(struct {
		plain
		OldDeviation string `json:"left"`
	}{plain(s), s.Deviation})
}

// PlainHTTPWarning returns the warning for a service whose balancers serve plain HTTP on the public
// internet; empty for any other.
func PlainHTTPWarning(spec *service.Spec) string {
	if spec.Balancer.TLS != nil || !cloud.UsesClouds(spec) {
		return ""
	}
	return "WARNING: public port: plain HTTP (balancer.insecure); prompts, responses and API keys can be read in transit"
}

// ControllerStatus is the controller's status, from its machine's agent.
type ControllerStatus struct {
	ID string `json:"id"`
	// Machine is the id of its machine; empty while it is not known which of several controllers leads.
	Machine string               `json:"machine"`
	State   service.ReplicaState `json:"state"`
	Reason  string               `json:"reason"`
	// Alerts are those that it reports to its machine's agent. Reason contains those of an earlier version.
	Alerts []telemetry.Alert `json:"alerts"`
	// Admin is the URL of its health endpoint, on its own machine; empty without Machine.
	Admin string `json:"admin"`
}

// DNSStatus is the public name of a service.
type DNSStatus struct {
	Name     string `json:"name"`
	Zone     string `json:"zone"`
	Provider string `json:"provider"`
	// Server is the name server's machine; null for a hosted zone.
	Server *MachineStatus `json:"server"`
	// Records are the records of the name server; empty for a hosted zone, which checks its records
	// itself.
	Records []DNSRecord `json:"records"`
}

// DNSRecord is a balancer's record at the name server.
type DNSRecord struct {
	ID      string         `json:"id"`
	Region  service.Region `json:"region"`
	Address string         `json:"address"` // with its port
	// Healthy is true while the record is served.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason"` // why its last check failed
}

// ImageStatus is the container image of a model.
type ImageStatus struct {
	Model string `json:"model"`
	// Image is the image that machines pull, with its digest if that is known.
	Image string `json:"image"`
	// Pinned is true for an image with a digest, so that every machine pulls the same one.
	Pinned bool `json:"pinned"`
}

// RegionStatus is one region: of the service.yaml, or with remaining machines.
type RegionStatus struct {
	Name      service.Region  `json:"name"`
	Endpoint  string          `json:"endpoint"` // of its first balancer with an address; empty when none has
	Balancers []MachineStatus `json:"balancers"`
	Replicas  []MachineStatus `json:"replicas"`
}

// MarshalJSON adds the former key of Desired.
func (m MachineStatus) MarshalJSON() ([]byte, error) {
	type plain MachineStatus
	return json.Marshal(struct {
		plain
		OldDesired bool `json:"wanted"`
	}{plain(m), m.Desired})
}

// MachineStatus is one machine.
type MachineStatus struct {
	ID     string               `json:"id"`
	State  service.ReplicaState `json:"state"`
	Phase  agent.Phase          `json:"phase"` // from its agent; empty without a response
	Reason string               `json:"reason"`
	// Endpoint and Admin are a balancer's public and admin base URLs; URL is the URL at which a
	// replica accepts connections of balancers.
	Endpoint string `json:"endpoint,omitempty"`
	Admin    string `json:"admin,omitempty"`
	// Certificate is the certificate of a balancer's public listener; nil without TLS, or where it
	// is unknown.
	Certificate *telemetry.Certificate `json:"certificate,omitempty"`
	URL         string                 `json:"url,omitempty"`
	Model       string                 `json:"model,omitempty"`
	GPU         string                 `json:"gpu,omitempty"`
	// Offering is its offering, CostPerHour its cost in USD; 0 = unknown.
	Offering    *provision.Offering `json:"offering"`
	CostPerHour float64             `json:"cost_per_hour"`
	// Balancer is the balancer that reports a replica; empty when none does.
	Balancer string `json:"balancer,omitempty"`
	// PID is the process ID of a machine on this computer; empty unless the process runs.
	PID string `json:"pid,omitempty"`
	// Desired is false for machines that service.yaml no longer requires.
	Desired bool `json:"desired"`
	// Drained is true for a replica that an operator or a plan drained, Donated for a donated one.
	Drained bool `json:"drained"`
	Donated bool `json:"donated"`
	// InFlight is the number of requests in flight at a replica's machine.
	InFlight int `json:"in_flight"`
	// Start is the record of a replica's last start; nil if unknown. Failure is why it fails; nil if
	// nothing has failed.
	Start   *telemetry.Start `json:"start"`
	Failure *agent.Failure   `json:"failure"`
	// Version is the version of a replica's engine, or of a balancer; empty if unknown. ReadySince is the time at
	// which a replica's engine became ready; nil if unknown. GPUs are the figures of a replica's GPUs; empty if
	// unknown.
	Version    string                 `json:"version"`
	ReadySince *time.Time             `json:"ready_since"`
	GPUs       []telemetry.GPUFigures `json:"gpus"`
}

// StatusChange is a change in its JSON form.
type StatusChange struct {
	Action      provision.ChangeAction `json:"action"`
	ID          string                 `json:"id"`
	Kind        provision.ObjectKind   `json:"kind"`
	Region      service.Region         `json:"region"`
	Reason      string                 `json:"reason"`
	CostPerHour float64                `json:"cost_per_hour"` // difference to now, in USD
	// PriceFrom is the source of the price of a machine to launch; empty without one.
	PriceFrom string `json:"price_from"`
}

// ChangesOf returns changes in their JSON form; never nil.
func ChangesOf(changes provision.Changes) []StatusChange {
	out := []StatusChange{}
	for _, c := range changes {
		one := StatusChange{c.Action, c.ID(), c.Kind(), c.Region(), c.Reason, c.CostPerHour, ""}
		if len(c.Desired.Offerings) > 0 {
			one.PriceFrom = c.Desired.Offerings[0].PriceSource
		}
		out = append(out, one)
	}
	return out
}

// machineReport is the status of a machine's agent, or the error of reading it.
type machineReport struct {
	status agent.Status
	err    error
	// certificate is the certificate of a balancer's public listener, snapshot its snapshot of the
	// service; nil where unknown.
	certificate *telemetry.Certificate
	snapshot    *telemetry.Snapshot
	// start is the record of a replica's start; nil if unknown.
	start *telemetry.Start
}

// ErrEarlierVersion means that this version cannot manage a process of an earlier version.
var ErrEarlierVersion = errors.New("an incompatible earlier version of skyserve created it")

// IsEarlierVersion reports whether an object is a process on this computer from a version without agents.
func IsEarlierVersion(o provision.Object) bool {
	return o.TerminatedReason == "" && o.Endpoints == (provision.MachineEndpoints{}) && (cloud.RunsOnThisComputer(o.Region) || o.Kind == provision.KindController)
}

// stateOf returns the state of a machine, with the reason.
func stateOf(o provision.Object, a machineReport) (service.ReplicaState, string) {
	var unknownMachines *UnknownMachinesError
	switch {
	case errors.As(a.err, &unknownMachines):
		return service.StateFailed, "not launched by 'skyserve up': it receives no secrets; check who launched it, then run 'skyserve up --replace " + o.ID + "'"
	case o.TerminatedReason != "" && o.Offering != nil && o.Offering.Capacity == service.CapacitySpot:
		return service.StateInterrupted, o.TerminatedReason
	case o.TerminatedReason != "":
		return service.StateFailed, o.TerminatedReason
	case IsEarlierVersion(o):
		return service.StateNotReady, ErrEarlierVersion.Error()
	case !Reachable(o):
		return service.StateProvisioning, "waiting for an address from the cloud"
	case errors.Is(a.err, identity.ErrPin):
		return service.StateFailed, "its key has changed: 'skyserve up' gives it no certificate; find out who changed the machine or impersonates it, then run 'skyserve up --replace " + o.ID + "'"
	case errors.Is(a.err, identity.ErrUntrusted) && o.Kind == provision.KindReplica:
		return service.StateStarting, "enrolling: it has no valid certificate of the service; the controller or 'skyserve up' issues one"
	case errors.Is(a.err, identity.ErrUntrusted):
		return service.StateStarting, "enrolling: it has no valid certificate of the service; 'skyserve up' issues one"
	case a.err != nil:
		return service.StateNotReady, a.err.Error()
	}
	if f := a.status.Failure; f != nil && f.Permanent && a.status.Phase != agent.PhaseInterrupted && !lacksController(a.status.Units) {
		return service.StateFailed, f.String()
	}
	switch a.status.Phase {
	case agent.PhaseReady:
		if c := a.certificate; c != nil && c.Waiting != "" {
			return service.StateStarting, "waiting for certificate: " + c.Waiting
		} else if c != nil && c.Problem != "" {
			return service.StateReady, fmt.Sprintf("the newest certificate is invalid, the current one expires on %s: %s", c.ExpiresAt.Format(time.DateOnly), c.Problem)
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

// lacksController reports whether the controller is the only unit of a machine that is not ready. The
// controller has its own status: its balancer serves without it.
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

// Reachable reports whether the address of a machine's agent is known.
func Reachable(o provision.Object) bool {
	at := cloud.EndpointsOf(o)
	if o.Kind == provision.KindBalancer {
		return at.Advertised.Agent != ""
	}
	return at.Listen.Agent != ""
}

// machineStatus returns the status of a machine.
func machineStatus(spec *service.Spec, o provision.Object, a machineReport) MachineStatus {
	m := MachineStatus{
		ID: o.ID, Phase: a.status.Phase, Model: o.Labels["model"], GPU: gpuTypeOf(o),
		Offering: o.Offering, CostPerHour: o.CostPerHour, InFlight: a.status.InFlight, PID: o.Labels[labelPID], Desired: true,
	}
	m.State, m.Reason = stateOf(o, a)
	m.Version, m.GPUs = a.status.Version, a.status.GPUStats
	if a.status.Phase == agent.PhaseReady {
		m.ReadySince = a.start.ReadySince()
	}
	m.Certificate, m.Start, m.Failure = a.certificate, a.start, a.status.Failure
	if m.Reason == "" && o.TerminatedReason == "" && o.Offering != nil && !o.Offering.Ends.IsZero() {
		m.Reason = "its cloud terminates it at " + o.Offering.Ends.UTC().Format(time.RFC3339)
	}
	var unknownMachines *UnknownMachinesError
	switch {
	case o.TerminatedReason != "" && cloud.RunsOnThisComputer(o.Region):
		m.Endpoint, m.Admin, m.URL = "", "", ""
		if o.Kind != provision.KindBalancer {
			m.URL = o.Address
		}
	case !Reachable(o) || errors.As(a.err, &unknownMachines): // an unknown machine's address is not shown
	case o.Kind == provision.KindBalancer:
		m.Endpoint, m.Admin = PublicURL(spec, o), AdminURL(o)
		if cloud.RunsOnThisComputer(o.Region) {
			m.Admin = o.Admin // which also accepts plain HTTP
		}
	case cloud.RunsOnThisComputer(o.Region):
		m.URL = o.Address // the engine itself
	default:
		m.URL = engineURL(o)
	}
	return m
}

// controllerOf returns the status of the controller: of the leader if it is known, else of one that is ready, else of
// any; nil if no machine runs one. Of several ready controllers, one that does not lead is not named.
func controllerOf(spec *service.Spec, machines []provision.Object, responses []machineReport, leader string) *ControllerStatus {
	if len(cloud.ManagedRegions(spec)) == 0 {
		return nil
	}
	seen := map[string]AgentReport{}
	for i, o := range machines {
		seen[o.ID] = AgentReport{responses[i].status, responses[i].err}
	}
	ids := RunningControllers(seen)
	if len(ids) == 0 {
		ids = ControlMachines(spec, machines, nil)
	}
	rank := func(c *ControllerStatus) int {
		switch {
		case c == nil:
			return 4
		case c.Machine == leader && c.State == service.StateReady:
			return 0
		case c.State == service.StateReady:
			return 1
		case c.State == service.StateStarting:
			return 2
		}
		return 3
	}
	var best *ControllerStatus
	for _, id := range ids {
		if c := controllerOn(spec, id, machines, responses); rank(c) < rank(best) {
			best = c
		}
	}
	several := len(ids) > 1 || len(ControlMachines(spec, machines, nil)) > 1
	if rank(best) == 1 && several {
		best.Machine, best.Admin, best.State, best.Reason = "", "", service.StateStarting, "no leader is known yet"
		if leader != "" {
			best.State, best.Reason = service.StateNotReady, "the leader "+leader+" is not ready"
		}
	}
	return best
}

// controllerOn returns the status of the controller on a machine, by ID; nil if the machine runs none.
func controllerOn(spec *service.Spec, id string, machines []provision.Object, responses []machineReport) *ControllerStatus {
	c := &ControllerStatus{ID: provision.ControllerID, Machine: id, State: service.StateFailed, Alerts: []telemetry.Alert{}, Reason: "its machine no longer exists; run 'skyserve up' to replace it"}
	if !cloud.UsesClouds(spec) {
		c.Reason = "its process has ended; run 'skyserve up' to start it again"
	}
	i := slices.IndexFunc(machines, func(o provision.Object) bool { return o.ID == c.Machine && o.TerminatedReason == "" })
	if i < 0 {
		return c
	}
	if c.State, c.Reason = stateOf(machines[i], responses[i]); responses[i].err != nil || !Reachable(machines[i]) {
		return c
	}
	c.Admin = "http://" + cloud.EndpointsOf(machines[i]).Controller
	units := responses[i].status.Units
	u := slices.IndexFunc(units, func(u agent.UnitStatus) bool { return u.Name == UnitController })
	if u < 0 {
		return nil
	}
	c.Alerts = append(c.Alerts, units[u].Alerts...)
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

// regionsOf groups machines by region: those of the file first, then those with remaining machines.
func regionsOf(spec *service.Spec, machines []provision.Object, responses []machineReport) []RegionStatus {
	order := cloud.ManagedRegions(spec)
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
			m := machineStatus(spec, o, responses[i])
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

// elects reports whether controllers run and no leader is known, as in the first seconds after `up`. If there is none for
// long, alerts say why.
func (c *ControllerStatus) elects() bool {
	return c.State == service.StateStarting && c.Machine == ""
}

// controllerRuns reports whether a controller is ready or will soon lead.
func (s *ServiceStatus) controllerRuns() bool {
	return s.Controller != nil && (s.Controller.State == service.StateReady || s.Controller.elects())
}

// FailsOver reports whether the leader of the controllers is not ready, and enough others are to elect the next one.
func (s *ServiceStatus) FailsOver() bool {
	c, l := s.Controller, s.Leadership
	if c == nil || l == nil || c.State != service.StateNotReady || l.Leader == "" {
		return false
	}
	ready := 0
	for _, r := range s.Regions {
		for _, b := range r.Balancers {
			if b.State == service.StateReady && slices.Contains(l.Standbys, b.ID) {
				ready++
			}
		}
	}
	return ready > (1+len(l.Standbys))/2
}

// overallState returns the state of the service; complete means that every region was listed.
func (s *ServiceStatus) overallState(complete bool) ServiceState {
	healthy, serving, starting := complete && len(s.Drift) == 0 && s.StateError == "", false, false
	if s.DNS != nil && s.DNS.Server != nil && s.DNS.Server.State != service.StateReady {
		healthy = false
	}
	if s.Controller != nil && !s.controllerRuns() {
		healthy = false
	}
	for _, r := range s.Regions {
		for _, m := range slices.Concat(r.Balancers, r.Replicas) {
			healthy = healthy && (m.State == service.StateReady || m.Drained || m.Donated || !m.Desired)
		}
		for _, b := range r.Balancers {
			serving = serving || b.State == service.StateReady
			starting = starting || b.State == service.StateStarting || b.State == service.StateProvisioning
		}
	}
	switch {
	case serving && healthy:
		return StateReady
	case serving:
		return StateDegraded
	case starting:
		return StateStarting
	case !complete:
		return StateUnknown
	}
	return StateDown
}

// labelPID is the label of a local machine's process ID.
const labelPID = "pid"
