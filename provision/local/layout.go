package local

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The ports of a service, counted from local.port. A hundred of each kind fit.
const (
	defaultPort   = 8001
	adminOffset   = 100
	engineOffset  = 200
	storeOffset   = 300
	controlOffset = 310
	// challengeOffset is that of the ports on which balancers answer an authority (http-01).
	challengeOffset = 400
	slotsOfAKind    = 100
	loopback        = "127.0.0.1"
	portSetting     = "local.port"
	labelStore      = "store" // host:port of the embedded store that an object serves
)

// Layout is a service as it should be on this machine.
type Layout struct {
	Wants      []provision.Want
	Balancers  []service.BalancerConfig
	Controller service.ControllerConfig
	// Replicas are all replicas, in the order of service.yaml: those that serve, and
	// those that are drained or donated.
	Replicas []service.ReplicaConfig
	// Wanted is what was decided beside service.yaml, less what is void by now.
	Wanted Wanted

	svc     Service
	spec    *service.Spec
	tokens  Tokens
	slots   slotFile
	recipes map[string]recipe
}

// recipe is how a process is run: what provision.Want.Recipe holds.
type recipe struct {
	Args []string `json:"args"`
	// File and Text are the configuration file that Args name, empty when none.
	File  string `json:"file,omitempty"`
	Text  string `json:"text,omitempty"`
	Ports []port `json:"ports"`
}

// port is an address that a process listens on.
type port struct {
	Addr    string `json:"addr"`
	Purpose string `json:"purpose"`
	// Setting is what moves it; empty = local.port.
	Setting string `json:"setting,omitempty"`
}

// Layout says what a service.yaml asks for on this machine. Balancers run here
// for every region; replicas run here for local regions, and those given in
// attached (of static regions) are only attached. Nothing is written. Errors
// are of configuration (*provision.SpecError), or of reading the state directory.
func (s Service) Layout(spec *service.Spec, attached map[service.Region][]service.ReplicaConfig) (*Layout, error) {
	wanted, err := s.Wanted()
	if err != nil {
		return nil, err
	}
	return s.LayoutOf(spec, wanted, attached)
}

// LayoutOf is Layout with another decision about replicas than the one that is
// kept; Save keeps it.
func (s Service) LayoutOf(spec *service.Spec, wanted Wanted, attached map[service.Region][]service.ReplicaConfig) (*Layout, error) {
	wanted = wanted.tidy(spec, idsOf(attached))
	if err := check(spec, wanted); err != nil {
		return nil, err
	}
	l := &Layout{svc: s, spec: spec, Wanted: wanted, recipes: map[string]recipe{}}
	var err error
	if l.tokens, err = s.Tokens(); err != nil {
		return nil, err
	}
	if token, isSet := os.LookupEnv(EnvAdminToken); isSet {
		l.tokens.Admin = token
	}
	replicas := l.localReplicas()
	balancers, engines := slotIDs(spec, replicas)
	if l.slots, err = s.assignSlots(spec.LocalHosts.Port, balancers, engines); err != nil {
		return nil, err
	}
	if err := l.checkSlots(); err != nil {
		return nil, err
	}
	for i := range replicas {
		replicas[i].config.URL = "http://" + l.engineAddr(replicas[i].config.ID)
		if err := l.addReplica(replicas[i]); err != nil {
			return nil, err
		}
	}
	if err := l.addControl(slices.Concat(replicas, placeAttached(spec, attached))); err != nil {
		return nil, err
	}
	return l, l.addNameServer()
}

// Save keeps what the layout decided and text, the service.yaml that it was
// made from, and writes the configuration file of every process. Processes that
// run are not disturbed: they read theirs when they start.
func (l *Layout) Save(text []byte) error {
	for _, f := range []struct {
		name string
		v    any
	}{{fileTokens, l.tokens}, {fileSlots, l.slots}, {fileWanted, l.Wanted}} {
		data, err := json.Marshal(f.v)
		if err == nil {
			err = writeFile(l.svc.configFile(f.name), data)
		}
		if err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(l.recipes)) {
		if r := l.recipes[id]; r.File != "" {
			if err := writeFile(l.svc.configFile(r.File), []byte(r.Text)); err != nil {
				return err
			}
		}
	}
	return writeFile(l.svc.SpecFile(), text)
}

// specError is an error of configuration.
func specError(format string, args ...any) error {
	return &provision.SpecError{Err: fmt.Errorf(format, args...)}
}

// placed is a replica with its home balancer; model is nil where it is only attached.
type placed struct {
	config service.ReplicaConfig
	home   string
	model  *service.Model
	number int // counts a model's replicas in a region
}

// check refuses what this machine cannot provide.
func check(spec *service.Spec, wanted Wanted) error {
	places := map[string]service.Region{}
	for i, r := range spec.Regions {
		if other, taken := places[r.Name.Place()]; taken {
			return specError("regions[%d].name: %s and %s are both called %q here", i, r.Name, other, r.Name.Place())
		}
		places[r.Name.Place()] = r.Name
		for j, m := range spec.Models {
			if r.Name.Cloud() == service.CloudLocal && m.Engine.Kind != service.EngineSim && len(wanted.Numbers(spec, m.Name, r.Name)) > 0 {
				return specError("models[%d].engine.kind: region %s is local and runs simulated engines only, got %q", j, r.Name, m.Engine.Kind)
			}
		}
	}
	return nil
}

// localReplicas are the simulated engines of the local regions, in the order of
// the file.
func (l *Layout) localReplicas() []placed {
	var replicas []placed
	for _, r := range l.spec.Regions {
		if r.Name.Cloud() != service.CloudLocal {
			continue
		}
		for i := range l.spec.Models {
			m := &l.spec.Models[i]
			for _, n := range l.Wanted.Numbers(l.spec, m.Name, r.Name) {
				c := service.ReplicaConfig{ID: provision.ReplicaID(l.spec, i, r.Name, n), Model: m.Name, Kind: m.Engine.Kind, Region: r.Name}
				c.DataParallel, c.MaxNumSeqs = m.Engine.DataParallel, m.Engine.MaxNumSeqs
				if len(m.GPUs) > 0 {
					c.GPU = m.GPUs[0].Type
				}
				replicas = append(replicas, placed{config: c, home: homeOf(r, n), model: m, number: n})
			}
		}
	}
	return replicas
}

// idsOf are the ids of attached replicas; never nil.
func idsOf(attached map[service.Region][]service.ReplicaConfig) []string {
	ids := []string{}
	for _, replicas := range attached {
		for _, r := range replicas {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// placeAttached gives every attached replica its home.
func placeAttached(spec *service.Spec, attached map[service.Region][]service.ReplicaConfig) []placed {
	var replicas []placed
	for _, r := range spec.Regions {
		for n, c := range attached[r.Name] {
			replicas = append(replicas, placed{config: c, home: homeOf(r, n)})
		}
	}
	return replicas
}

// homeOf deals the replicas of a region out to its balancers in turn.
func homeOf(r service.RegionSpec, number int) string {
	return provision.BalancerID(r.Name, number%r.Balancers)
}

// slotIDs lists the ids that need a slot, balancers apart from engines.
func slotIDs(spec *service.Spec, replicas []placed) (balancers, engines []string) {
	for _, r := range spec.Regions {
		for n := range r.Balancers {
			balancers = append(balancers, provision.BalancerID(r.Name, n))
		}
	}
	for _, r := range replicas {
		engines = append(engines, r.config.ID)
	}
	return balancers, engines
}

// checkSlots makes sure that every object has a port of its own kind.
func (l *Layout) checkSlots() error {
	for _, slots := range []map[string]int{l.slots.Balancers, l.slots.Engines} {
		for _, id := range slices.Sorted(maps.Keys(slots)) {
			if slots[id] >= slotsOfAKind {
				return specError("placing %s on this machine: no more than %d balancers and %d replicas fit", id, slotsOfAKind, slotsOfAKind)
			}
		}
	}
	if p := l.slots.Port; p < 1 || p+controlOffset > 65535 {
		return specError("%s: must be from 1 to %d, got %d", portSetting, 65535-controlOffset, p)
	}
	return nil
}

func (l *Layout) addr(offset int) string {
	return addrOf(l.slots.Port + offset)
}

func (l *Layout) engineAddr(id string) string { return l.addr(engineOffset + l.slots.Engines[id]) }

// addReplica wants the process of a simulated engine.
func (l *Layout) addReplica(r placed) error {
	m, addr := r.model, l.engineAddr(r.config.ID)
	args := slices.Insert(provision.SimArgs(m, addr), 5, "--seed", strconv.Itoa(1+l.slots.Engines[r.config.ID])) // after listen and model
	w := provision.Want{
		ID: r.config.ID, Kind: provision.KindReplica, Region: r.config.Region,
		Address: r.config.URL, Labels: map[string]string{"model": m.Name, "gpu": r.config.GPU},
	}
	return l.want(w, recipe{Args: args, Ports: []port{{Addr: addr, Purpose: "engine"}}}, args)
}

// addControl wants the balancers and the controller.
func (l *Layout) addControl(replicas []placed) error {
	l.Controller = service.ControllerConfig{
		Service: l.spec.Name, Listen: l.addr(controlOffset),
		StoreURL: l.spec.Store.URL, AdminToken: l.tokens.Admin, RTT: l.spec.LocalHosts.RTT,
	}
	if l.spec.Store.URL == "" {
		l.Controller.StoreListen, l.Controller.StoreDir = l.addr(storeOffset), l.svc.StoreDir()
		l.Controller.StoreToken = l.tokens.Store
	}
	for _, r := range replicas {
		l.Replicas = append(l.Replicas, r.config)
		if slices.Contains(l.Wanted.Drained, r.config.ID) || l.Wanted.IsDonated(r.config.ID) {
			continue // its process stays
		}
		l.Controller.Replicas = append(l.Controller.Replicas, service.ControlledReplica{ReplicaConfig: r.config, Home: r.home})
	}
	for _, r := range l.spec.Regions {
		for n := range r.Balancers {
			if err := l.addBalancer(r, provision.BalancerID(r.Name, n)); err != nil {
				return err
			}
		}
	}
	return l.addController()
}

// addBalancer wants one balancer. What it serves is not part of what it is:
// replicas come and go while it runs. It calls its configuration by the hash that
// it is known by, so that it can tell when it has taken another one up.
func (l *Layout) addBalancer(r service.RegionSpec, id string) error {
	c := service.BalancerConfig{
		Service: l.spec.Name, ID: id, Region: r.Name,
		Listen: l.addr(l.slots.Balancers[id]), Admin: l.addr(adminOffset + l.slots.Balancers[id]),
		Balancer: l.spec.Balancer, StoreURL: l.storeURL(), StoreToken: l.Controller.StoreToken,
		PeerToken: l.tokens.Peer, AdminToken: l.tokens.Admin, SpecFile: l.svc.SpecFile(),
		Peers: l.peers(r.Name, id),
	}
	for _, m := range l.spec.Models {
		c.Models = append(c.Models, service.BalancerModel{Name: m.Name, Aliases: m.Aliases, LoRA: m.Engine.Adapters(), SLO: m.SLO})
	}
	c.Certificate = l.certificate(id)
	identity := c
	fixed, err := provision.HashOf(identity.Fixed())
	if err == nil {
		c.Revision, err = provision.HashOf(identity)
	}
	if err != nil {
		return fmt.Errorf("describing %s: %w", id, err)
	}
	for _, rep := range l.Controller.Replicas {
		if rep.Home == id {
			c.Replicas = append(c.Replicas, rep.ReplicaConfig)
		}
	}
	l.Balancers = append(l.Balancers, c)
	l.Controller.Balancers = append(l.Controller.Balancers, service.ControlledBalancer{ID: id, Region: r.Name, Admin: "http://" + c.Admin})
	w := provision.Want{
		ID: id, Kind: provision.KindBalancer, Region: r.Name, Fixed: fixed,
		Address: l.scheme() + "://" + c.Listen, Admin: "http://" + c.Admin,
	}
	ports := []port{{Addr: c.Listen, Purpose: "public"}, {Addr: c.Admin, Purpose: "admin"}}
	if c.Certificate != nil && c.Certificate.Listen != "" {
		ports = append(ports, port{Addr: c.Certificate.Listen, Purpose: "challenge"})
	}
	return l.wantConfigured(w, c, identity, "lb", ports)
}

// certificate is how a balancer obtains the certificate of the service's name; nil where it
// does not. Records of Route 53 are written with the credentials of whoever brings the service
// up.
func (l *Layout) certificate(id string) *service.CertificateConfig {
	if t := l.spec.Balancer.TLS; t == nil || t.ACME == nil {
		return nil
	}
	c := &service.CertificateConfig{Name: l.spec.DNS.Name, Dir: l.svc.certificateDir(id)}
	switch {
	case l.spec.Obtains(service.ChallengeHTTP):
		c.Listen = l.addr(challengeOffset + l.slots.Balancers[id])
	case l.spec.Obtains(service.ChallengeDNS):
		c.Zone, c.Private = l.spec.DNS.Zone, l.spec.DNS.Private
	}
	return c
}

// peers are all other balancers as seen from one.
func (l *Layout) peers(from service.Region, self string) []service.PeerConfig {
	var peers []service.PeerConfig
	for _, r := range l.spec.Regions {
		for n := range r.Balancers {
			id := provision.BalancerID(r.Name, n)
			if id == self {
				continue
			}
			peers = append(peers, service.PeerConfig{
				ID: id, Region: r.Name,
				URL: l.scheme() + "://" + l.addr(l.slots.Balancers[id]), Admin: "http://" + l.addr(adminOffset+l.slots.Balancers[id]),
				EmulateRTT: l.spec.LocalHosts.RTTBetween(from.Place(), r.Name.Place()),
			})
		}
	}
	return peers
}

// addController wants the controller. It reads the replicas again while it runs
// and calls its configuration by the hash that it is known by, as balancers do.
func (l *Layout) addController() error {
	fixed, err := provision.HashOf(l.Controller.Fixed())
	identity := l.Controller
	if err == nil {
		l.Controller.Revision, err = provision.HashOf(identity)
	}
	if err != nil {
		return fmt.Errorf("describing the %s: %w", provision.ControllerID, err)
	}
	ports := []port{{Addr: l.Controller.Listen, Purpose: "controller"}}
	labels := map[string]string{}
	if l.Controller.StoreListen != "" {
		labels[labelStore] = l.Controller.StoreListen
		ports = append(ports, port{Addr: l.Controller.StoreListen, Purpose: "store"})
	}
	w := provision.Want{ID: provision.ControllerID, Kind: provision.KindController, Fixed: fixed, Admin: "http://" + l.Controller.Listen, Labels: labels}
	return l.wantConfigured(w, l.Controller, identity, "controller", ports)
}

func (l *Layout) storeURL() string {
	if l.spec.Store.URL != "" {
		return l.spec.Store.URL
	}
	return "nats://" + l.Controller.StoreListen
}

func (l *Layout) scheme() string {
	if l.spec.Balancer.TLS != nil {
		return "https"
	}
	return "http"
}

// wantConfigured wants a process that reads its configuration from a file.
func (l *Layout) wantConfigured(w provision.Want, config, identity any, verb string, ports []port) error {
	file := w.ID + ".yaml"
	text, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("writing the configuration of %s: %w", w.ID, err)
	}
	return l.want(w, recipe{
		Args: []string{verb, "--config", l.svc.configFile(file)},
		File: file, Text: string(text), Ports: ports,
	}, identity)
}

// want adds a process whose identity decides whether it has to be replaced.
func (l *Layout) want(w provision.Want, r recipe, identity any) error {
	spec, err := provision.HashOf(identity)
	if err != nil {
		return fmt.Errorf("describing %s: %w", w.ID, err)
	}
	if w.Recipe, err = json.Marshal(r); err != nil {
		return fmt.Errorf("describing %s: %w", w.ID, err)
	}
	w.Service, w.Spec = l.spec.Name, spec
	l.Wants = append(l.Wants, w)
	l.recipes[w.ID] = r
	return nil
}
