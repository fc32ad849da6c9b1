package rollout

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/dns"
	"skyserve/provision/local"
)

// State is how a service, a balancer or the controller does.
type State string

// The states, from good to bad. A balancer that is READY takes requests.
const (
	StateReady    State = "READY"
	StateStarting State = "STARTING" // runs and does not work yet
	StateDegraded State = "DEGRADED" // a part of the service does not work
	StateDown     State = "DOWN"     // does not run
)

// Status is a service as it is now: what runs by its locks, and how it does by
// what the balancers say. It is what `status -o json` prints.
type Status struct {
	Service     string         `json:"service"`
	State       State          `json:"state"`
	CostPerHour float64        `json:"cost_per_hour"` // USD
	Regions     []RegionStatus `json:"regions"`
	Controller  Process        `json:"controller"`
	DNS         *DNSStatus     `json:"dns"` // null where the service has no name
	// Store says where state is kept: "not replicated", "external", or
	// "unknown" while the controller does not answer.
	Store string `json:"store"`
	// Problem says what is wrong with the service's kept state; empty when nothing is.
	Problem string `json:"problem,omitempty"`
	// Peak, Plan and Left say in a line each what is expected of the next hours, what
	// the controller's last plan proposes, and which loads left their forecasts;
	// empty where there is nothing to say.
	Peak string `json:"peak"`
	Plan string `json:"plan"`
	Left string `json:"left"`
	// Strategy is what changes the number of replicas between plans, Donations say
	// in a line what is lent, Events are the last things that the strategy did, a line
	// each.
	Strategy  string   `json:"strategy"`
	Donations string   `json:"donations"`
	Events    []string `json:"events"`
	// Alerts are what somebody has to act on, the worst first.
	Alerts []telemetry.Alert `json:"alerts"`
}

// RegionStatus is one region.
type RegionStatus struct {
	Name      service.Region  `json:"name"`
	Endpoint  string          `json:"endpoint"` // of its first balancer that runs; empty when none does
	Balancers []Process       `json:"balancers"`
	Replicas  []ReplicaStatus `json:"replicas"`
}

// Process is a balancer or the controller.
type Process struct {
	ID       string `json:"id"`
	State    State  `json:"state"`
	Reason   string `json:"reason"`
	Endpoint string `json:"endpoint,omitempty"` // public base URL
	Admin    string `json:"admin"`              // admin base URL
	PID      string `json:"pid,omitempty"`
	Wanted   bool   `json:"wanted"` // false when the service.yaml does not ask for it any more
}

// ReplicaStatus is one replica.
type ReplicaStatus struct {
	ID     string               `json:"id"`
	Model  string               `json:"model"`
	GPU    string               `json:"gpu"`
	URL    string               `json:"url"`
	State  service.ReplicaState `json:"state"`
	Reason string               `json:"reason"`
	// Balancer is the one that reports on it; empty when none does.
	Balancer string `json:"balancer"`
	PID      string `json:"pid,omitempty"`
	Wanted   bool   `json:"wanted"`
	// Drained says that it is sent nothing because somebody, or a plan, wants it so.
	Drained bool `json:"drained"`
	// Donated says that it is lent to the spot pool.
	Donated bool `json:"donated"`
}

// GetStatus asks everything that runs, at once and briefly, and never fails
// because something does not answer.
func GetStatus(ctx context.Context, svc local.Service) (*Status, error) {
	objects, err := svc.Objects()
	if err != nil {
		return nil, err
	}
	b := &statusBuilder{
		status:  Status{Service: svc.Name(), Regions: []RegionStatus{}, Store: "unknown", Events: []string{}},
		objects: map[string]provision.Object{}, reports: map[string]report{},
	}
	if b.token, err = svc.AdminToken(); err != nil {
		return nil, err
	}
	for _, o := range objects {
		b.objects[o.ID] = o
		if o.Gone == "" {
			b.status.CostPerHour += o.CostPerHour
		}
	}
	b.readSpec(svc)
	b.addUnwanted(objects)
	b.ask(ctx)
	return b.build(), nil
}

// statusBuilder gathers a Status.
type statusBuilder struct {
	status   Status
	objects  map[string]provision.Object
	order    []service.Region // of the service.yaml
	wants    []provision.Want // what should be, then what is besides
	unwanted map[string]bool
	dns      *service.DNS // of the service.yaml
	wanted   local.Wanted
	attached map[string]service.ReplicaConfig // replicas of static regions
	token    string                           // of the admin APIs

	mu        sync.Mutex
	reports   map[string]report // of balancers, by id
	view      *controller.View
	viewError string
	names     []dns.RecordState // of the name server
	nameError string
}

// report is what one balancer said.
type report struct {
	snapshot *telemetry.Snapshot
	problem  string // why it does not take requests, or why it does not answer
}

// remark is what a balancer that works has to say of itself all the same.
func (r report) remark(id string) string {
	if b := r.snapshot.Balancer(id); b != nil && b.Certificate != nil && b.Certificate.Problem != "" {
		return b.Reason
	}
	return ""
}

// readSpec finds what should be. Without a service.yaml that can be read, what
// is has to do.
func (b *statusBuilder) readSpec(svc local.Service) {
	text, err := os.ReadFile(svc.SpecFile())
	if errors.Is(err, fs.ErrNotExist) {
		b.status.Problem = "its service.yaml is missing in the state directory"
		return
	}
	var spec *service.Spec
	if err == nil {
		spec, err = Read(svc.SpecFile(), text)
	}
	var layout *local.Layout
	if err == nil {
		layout, err = svc.Layout(spec, attached(spec))
	}
	if err != nil {
		b.status.Problem = err.Error()
		return
	}
	b.wants, b.wanted, b.dns = layout.Wants, layout.Wanted, spec.DNS
	b.attached = map[string]service.ReplicaConfig{}
	for _, r := range spec.Regions {
		b.order = append(b.order, r.Name)
		for _, c := range attached(spec)[r.Name] {
			b.attached[c.ID] = c
			b.wants = append(b.wants, provision.Want{
				ID: c.ID, Kind: provision.KindReplica, Region: r.Name,
				Address: c.URL, Labels: map[string]string{"model": c.Model, "gpu": c.GPU},
			})
		}
	}
}

// addUnwanted adds the objects that nothing asks for.
func (b *statusBuilder) addUnwanted(objects []provision.Object) {
	b.unwanted = map[string]bool{}
	for _, o := range objects {
		if slices.ContainsFunc(b.wants, func(w provision.Want) bool { return w.ID == o.ID }) {
			continue
		}
		b.unwanted[o.ID] = true
		b.wants = append(b.wants, provision.Want{ID: o.ID, Kind: o.Kind, Region: o.Region, Address: o.Address, Admin: o.Admin, Labels: o.Labels})
	}
	for _, w := range b.wants {
		if w.Region != "" && !slices.Contains(b.order, w.Region) {
			b.order = append(b.order, w.Region)
		}
	}
}

// ask asks all balancers that run and the controller.
func (b *statusBuilder) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, w := range b.wants {
		o, exists := b.objects[w.ID]
		if !exists || o.Gone != "" {
			continue
		}
		switch w.Kind {
		case provision.KindBalancer:
			wg.Go(func() { b.askBalancer(ctx, o) })
		case provision.KindController:
			wg.Go(func() { b.askController(ctx, o) })
		case provision.KindNameServer:
			wg.Go(func() { b.askNameServer(ctx) })
		}
	}
	wg.Wait()
}

func (b *statusBuilder) askBalancer(ctx context.Context, o provision.Object) {
	var r report
	var err error
	if r.snapshot, err = adminClient(o.Admin, b.token).Snapshot(ctx); err != nil {
		r.problem = err.Error()
	} else {
		r.problem = cmp.Or(waitingForCertificate(r.snapshot, o.ID), ask(ctx, o.Address+b.readiness(o.Region)))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reports[o.ID] = r
}

// readiness is the path that tells whether a balancer of a region takes
// requests. Where the region has no replica it is ready when it can forward,
// and nothing promises that.
func (b *statusBuilder) readiness(region service.Region) string {
	for _, w := range b.wants {
		if w.Kind == provision.KindReplica && w.Region == region {
			return readyPath
		}
	}
	return "/healthz"
}

func (b *statusBuilder) askController(ctx context.Context, o provision.Object) {
	view, err := controllerView(ctx, o.Admin)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.view = view; err != nil {
		b.viewError = err.Error()
	}
}

// controllerView asks the controller what it does.
func controllerView(ctx context.Context, base string) (*controller.View, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/state", nil)
	if err != nil {
		return nil, err
	}
	res, err := localClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, errors.New("GET " + req.URL.String() + ": " + res.Status)
	}
	view := new(controller.View)
	return view, json.NewDecoder(io.LimitReader(res.Body, maxViewBytes)).Decode(view)
}

// maxViewBytes bounds what is read of the controller's answer: hundreds of
// thousands of replicas fit.
const maxViewBytes = 64 << 20

// build makes the Status of all that was gathered.
func (b *statusBuilder) build() *Status {
	for _, name := range b.order {
		b.status.Regions = append(b.status.Regions, b.region(name))
	}
	for _, w := range b.wants {
		if w.Kind == provision.KindController {
			b.status.Controller = b.controller(w)
		}
	}
	b.status.DNS = b.nameStatus()
	b.status.Controller.State = cmp.Or(b.status.Controller.State, StateDown)
	if b.view != nil {
		b.status.Store = b.view.Store
	}
	b.status.State, b.status.Alerts = b.overall(), b.alerts()
	if s := b.planned(); s != nil {
		b.status.Peak, b.status.Plan, b.status.Left = s.PeakLine(), s.PlanLine(time.Local), s.LeftLine()
	}
	if s := b.scaled(); s != nil {
		b.status.Strategy, b.status.Donations = s.Strategy, s.DonationLine()
		b.status.Events = append(b.status.Events, s.EventLines(time.Local, shownEvents)...)
	}
	return &b.status
}

// alerts are those that the controller and the balancers tell.
func (b *statusBuilder) alerts() []telemetry.Alert {
	var lists [][]telemetry.Alert
	if b.view != nil {
		lists = append(lists, b.view.Alerts)
	}
	for _, id := range ids(b.reports) {
		if s := b.reports[id].snapshot; s != nil {
			lists = append(lists, s.Alerts)
		}
	}
	return telemetry.MergeAlerts(lists...)
}

// shownEvents is how many events of the strategy a status shows.
const shownEvents = 3

// scaled is a snapshot that tells of the strategy; nil where no balancer heard of it.
// All hear the same, within a moment.
func (b *statusBuilder) scaled() *telemetry.Snapshot {
	for _, id := range ids(b.reports) {
		if s := b.reports[id].snapshot; s != nil && s.Strategy != "" {
			return s
		}
	}
	return nil
}

// planned is the snapshot with the newest plan; nil where no balancer knows of one.
func (b *statusBuilder) planned() (newest *telemetry.Snapshot) {
	for _, id := range ids(b.reports) {
		s := b.reports[id].snapshot
		if s != nil && s.Plan != nil && (newest == nil || s.Plan.At.After(newest.Plan.At)) {
			newest = s
		}
	}
	return newest
}

func (b *statusBuilder) region(name service.Region) RegionStatus {
	r := RegionStatus{Name: name, Balancers: []Process{}, Replicas: []ReplicaStatus{}}
	for _, w := range b.wants {
		switch {
		case w.Region != name:
		case w.Kind == provision.KindBalancer:
			p := b.process(w)
			if report, asked := b.reports[w.ID]; asked && report.problem != "" {
				p.State, p.Reason = StateStarting, report.problem
			} else if asked {
				p.Reason = report.remark(w.ID)
			}
			if p.State != StateDown {
				r.Endpoint = cmp.Or(r.Endpoint, p.Endpoint)
			}
			r.Balancers = append(r.Balancers, p)
		case w.Kind == provision.KindReplica:
			r.Replicas = append(r.Replicas, b.replica(w))
		}
	}
	return r
}

// process is a process by its lock alone.
func (b *statusBuilder) process(w provision.Want) Process {
	p := Process{ID: w.ID, State: StateReady, Endpoint: w.Address, Admin: w.Admin, Wanted: !b.unwanted[w.ID]}
	o, exists := b.objects[w.ID]
	switch {
	case !exists:
		p.State, p.Reason = StateDown, "not started"
	case o.Gone != "":
		p.State, p.Reason = StateDown, o.Gone
	default:
		p.PID = o.Handle
	}
	return p
}

// noLease is why a controller that runs does not lead, where its store works.
const noLease = "waiting for the lease"

// notActing says why a controller that answers does not act; empty when it does.
func notActing(view *controller.View) string {
	for _, a := range view.Alerts {
		if a.Kind == telemetry.AlertStore && a.Severity == telemetry.SeverityCritical {
			return "its store does not work: " + a.Message
		}
	}
	if !view.Leading {
		return noLease
	}
	return ""
}

func (b *statusBuilder) controller(w provision.Want) Process {
	p := b.process(w)
	switch {
	case p.State == StateDown:
	case b.view == nil:
		p.State, p.Reason = StateStarting, b.viewError
	default:
		if p.Reason = notActing(b.view); p.Reason != "" {
			p.State = StateStarting
		}
	}
	return p
}

// replica is a replica by its lock and what a balancer says of it.
func (b *statusBuilder) replica(w provision.Want) ReplicaStatus {
	r := ReplicaStatus{ID: w.ID, Model: w.Labels["model"], GPU: w.Labels["gpu"], URL: w.Address, Wanted: !b.unwanted[w.ID], Drained: slices.Contains(b.wanted.Drained, w.ID), Donated: b.wanted.IsDonated(w.ID)}
	o, exists := b.objects[w.ID]
	_, isAttached := b.attached[w.ID]
	switch {
	case !exists && !isAttached:
		r.State, r.Reason = service.StatePending, "not started"
		return r
	case o.Gone != "":
		r.State, r.Reason = service.StateFailed, o.Gone
		return r
	}
	r.PID = o.Handle
	r.State, r.Reason = service.StateStarting, "no balancer reports on it"
	if r.Drained {
		r.State, r.Reason = service.StateDraining, "is drained and gets nothing; 'skyserve replica drain --undo "+w.ID+"' ends that"
	}
	switch d := b.wanted.Donation(w.ID); {
	case d == nil:
	case d.Leaving():
		r.State, r.Reason = service.StateShuttingDown, "finishes what it has and is stopped"
	default:
		r.State, r.Reason = service.StateDonated, d.String()
	}
	balancer, report := b.reportOn(w.ID)
	if report != nil {
		r.State, r.Reason, r.Balancer = report.State, report.Reason, balancer
		r.Model, r.GPU = cmp.Or(r.Model, report.Model), cmp.Or(r.GPU, report.GPU)
	}
	return r
}

// reportOn finds what the balancer that serves a replica says of it: the one in
// whose own region's part it stands.
func (b *statusBuilder) reportOn(id string) (balancer string, found *telemetry.ReplicaSnapshot) {
	for _, lb := range ids(b.reports) {
		snapshot := b.reports[lb].snapshot
		if snapshot == nil {
			continue
		}
		for _, region := range snapshot.Regions {
			if region.Name != b.objects[lb].Region {
				continue
			}
			for i := range region.Replicas {
				r := &region.Replicas[i]
				if r.ID == id && (found == nil || r.State == service.StateReady && found.State != service.StateReady) {
					balancer, found = lb, r
				}
			}
		}
	}
	return balancer, found
}

// overall sums the parts up: DOWN when no balancer runs, DEGRADED when a wanted
// part does not work.
func (b *statusBuilder) overall() State {
	running, well := 0, b.status.Controller.State == StateReady && b.status.Problem == "" && b.status.DNS.well()
	for _, r := range b.status.Regions {
		for _, p := range r.Balancers {
			if p.State != StateDown {
				running++
			}
			well = well && (p.State == StateReady || !p.Wanted)
		}
		for _, rep := range r.Replicas {
			well = well && (rep.State == service.StateReady || !rep.Wanted || rep.Drained || rep.Donated)
		}
	}
	switch {
	case running == 0:
		return StateDown
	case !well:
		return StateDegraded
	}
	return StateReady
}
