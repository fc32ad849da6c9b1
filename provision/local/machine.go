package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"

	"skyserve/internal/agent"
	"skyserve/internal/atomicfile"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// A machine on this computer is a directory, which is its disk, and a process that runs the
// agent. One whose process ended starts again with the same disk, as a machine does.

// Names in a service's directory, and in that of a machine.
const (
	dirMachines  = "machines"
	fileNode     = "node.json"
	fileConsole  = "console"
	dirState     = "state"
	nodeFile     = "/etc/skyserve/node.json" // in the cloud-init document
	machineType  = "local"
	machinesLock = "machines.lock"
)

// agentOffset begins the ports of agents, of balancers and then of replicas; frontOffset those on
// which replicas let balancers in.
const (
	agentOffset        = 500
	replicaAgentOffset = 600
	frontOffset        = 700
	lastOffset         = frontOffset + slotsOfAKind
)

func (s Service) machineDir(id string) string { return filepath.Join(s.dir, dirMachines, id) }

// labelName is the label of a name server that says where it answers, host:port.
const labelName = "dns"

// For makes the provider one for the regions of a service, so that it knows what a machine may
// be, and in which order they get their ports.
func (p *Provider) For(spec *service.Spec) *Provider {
	p.spec = spec
	return p
}

// Offerings is this computer: with whatever GPUs the service names, which engines simulate.
func (p *Provider) Offerings(_ context.Context, region service.Region) (provision.Offerings, error) {
	if p.spec == nil {
		return nil, nil
	}
	offer := provision.Offering{Type: machineType, Region: region, Capacity: service.CapacityOnDemand}
	all := provision.Offerings{offer}
	for _, m := range p.spec.Models {
		for _, g := range m.GPUs {
			offer.GPU, offer.GPUs = g.Type, g.Count
			if len(all.With(g.Type, g.Count)) == 0 {
				all = append(all, offer)
			}
		}
	}
	return all, nil
}

// Launch starts the process of a machine and returns once it holds its object file.
func (p *Provider) Launch(ctx context.Context, w provision.Want) (provision.Object, error) {
	if err := ctx.Err(); err != nil {
		return provision.Object{}, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	if w.Machine == nil {
		return provision.Object{}, fmt.Errorf("starting %s: it is no machine", w.ID)
	}
	if err := os.MkdirAll(p.svc.objectDir(), dirMode); err != nil {
		return provision.Object{}, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	one, err := lockWait(ctx, filepath.Join(p.svc.objectDir(), w.ID+".lock"), startTimeout) // until it holds its file
	if err != nil {
		return provision.Object{}, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	defer one.Close()
	rec, alive, err := readObject(p.svc.objectFile(w.ID))
	switch {
	case alive && err == nil && rec.Spec == w.Spec:
		return p.svc.describe(w.ID, rec, true, nil), nil
	case alive:
		return provision.Object{}, fmt.Errorf("starting %s: it runs already, with another configuration", w.ID)
	}
	begun, err := p.boot(ctx, w, rec)
	if err != nil {
		if o, runs := p.runs(w); runs { // it has its ports, and was about to hold its object above
			return o, nil
		}
		return provision.Object{}, err
	}
	return p.untilHeld(ctx, w, begun.cmd, begun.log)
}

// runs is the machine that is wanted, where a process holds its object.
func (p *Provider) runs(w provision.Want) (o provision.Object, runs bool) {
	rec, alive, err := readObject(p.svc.objectFile(w.ID))
	if !alive || err != nil || rec.Spec != w.Spec {
		return o, false
	}
	return p.svc.describe(w.ID, rec, true, nil), true
}

// booting is a process that was started.
type booting struct {
	cmd *exec.Cmd
	log int64 // where what it writes begins
}

// boot starts a machine's process. dead is what is left of the one before, if anything.
func (p *Provider) boot(ctx context.Context, w provision.Want, dead record) (begun booting, err error) {
	lock, err := lockWait(ctx, p.svc.configFile(machinesLock), homeTimeout)
	if err != nil {
		return begun, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	defer lock.Close()
	if p.exe == "" {
		if p.exe, p.build, err = p.svc.Install(ctx); err != nil {
			return begun, err
		}
	}
	at, err := p.endpoints(w)
	if err != nil {
		return begun, err
	}
	dir := p.svc.machineDir(w.ID)
	o := p.objectOf(w, at)
	if o.Handle = dead.Object.Handle; dead.Spec != w.Spec || o.Handle == "" {
		o.Handle = "local-" + strings.ToLower(rand.Text()[:12])
		if err := os.RemoveAll(dir); err != nil {
			return begun, fmt.Errorf("starting %s: %w", w.ID, err)
		}
	} else {
		o.Labels = dead.Labels
	}
	file, err := prepare(dir, w.Machine.UserData, at)
	if err != nil {
		return begun, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	cmd, log, err := p.command(o, []string{"node", "--config", file})
	if err != nil {
		return begun, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	begun = booting{cmd, log.size()}
	err = cmd.Start()
	log.Close()
	if err != nil {
		return begun, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	return begun, nil
}

// prepare writes the configuration of a machine's agent, as its cloud-init document has it.
func prepare(dir, document string, at provision.Endpoints) (file string, err error) {
	var d struct {
		Files []struct{ Path, Content string } `yaml:"write_files"`
	}
	if err := yaml.Unmarshal([]byte(document), &d); err != nil {
		return "", err
	}
	var config agent.Config
	for _, f := range d.Files {
		if f.Path == nodeFile {
			if err := json.Unmarshal([]byte(f.Content), &config); err != nil {
				return "", err
			}
		}
	}
	config.Listen, config.Dir = at.Inside.Agent, filepath.Join(dir, dirState)
	config.Publish, config.Runner, config.Notices = "console:"+filepath.Join(dir, fileConsole), agent.RunnerInside, ""
	text, err := json.Marshal(config)
	if err == nil {
		err = atomicfile.MkdirAll(config.Dir, dirMode)
	}
	file = filepath.Join(dir, fileNode)
	if err == nil {
		err = writeFile(file, text)
	}
	return file, err
}

// objectOf is a machine that is about to be started.
func (p *Provider) objectOf(w provision.Want, at provision.Endpoints) provision.Object {
	o := provision.Object{
		ID: w.ID, Kind: w.Kind, Service: w.Service, Owner: w.Owner, Region: w.Region, Spec: w.Spec, Fixed: w.Fixed, Build: p.build,
		Labels: w.Labels, CostPerHour: w.CostPerHour, Endpoints: at, PublicIP: netip.MustParseAddr(loopback), PrivateIP: netip.MustParseAddr(loopback),
	}
	if len(w.Offers) > 0 {
		o.Offering = &w.Offers[0]
	}
	scheme := "http://"
	if p.spec != nil && p.spec.Balancer.TLS != nil {
		scheme = "https://"
	}
	switch w.Kind {
	case provision.KindBalancer:
		o.Address, o.Admin = scheme+at.Inside.Public, "http://"+at.Inside.Admin
	case provision.KindNameServer:
		o.Address = "dns://" + w.Labels[labelName]
	default:
		o.Address = "http://" + at.Engine
	}
	return o
}

// endpoints gives a machine its ports, which it keeps for as long as there is anything of it. The
// caller holds machinesLock. A port that somebody has is a *provision.PortTakenError.
func (p *Provider) endpoints(w provision.Want) (at provision.Endpoints, err error) {
	slots, err := p.slots(w)
	if err != nil {
		return at, err
	}
	at = slots.endpoints(w.ID, w.Kind)
	if taken := p.taken(w, at); len(taken) > 0 {
		return at, taken[0]
	}
	text, err := json.Marshal(slots)
	if err == nil {
		err = writeFile(p.svc.configFile(fileSlots), text)
	}
	return at, err
}

// base is the first port of the service.
func (p *Provider) base() int {
	if p.spec == nil {
		return defaultPort
	}
	return p.spec.LocalHosts.Port
}

// slots are the places of the service's machines, and of one more, among the ports.
func (p *Provider) slots(w provision.Want) (slotFile, error) {
	balancers, engines := []string{}, []string{}
	if p.spec != nil {
		balancers, engines = slotIDs(p.spec)
	}
	if w.Kind == provision.KindBalancer {
		balancers = append(balancers, w.ID)
	} else {
		engines = append(engines, w.ID)
	}
	slots, err := p.svc.assignSlots(p.base(), balancers, engines)
	if err == nil {
		err = slots.check()
	}
	return slots, err
}

// PublicAddress is host:port where a balancer that is wanted answers clients.
func (p *Provider) PublicAddress(w provision.Want) (string, error) {
	slots, err := p.slots(w)
	return slots.endpoints(w.ID, w.Kind).Inside.Public, err
}

// taken are the ports of a machine that somebody has.
func (p *Provider) taken(w provision.Want, at provision.Endpoints) []*provision.PortTakenError {
	var taken []*provision.PortTakenError
	for _, used := range portsOf(at, w.Kind, w.Labels[labelName]) {
		if PortTaken(used.addr) {
			taken = append(taken, &provision.PortTakenError{Addr: used.addr, ID: w.ID, Purpose: used.purpose, Setting: used.setting})
		}
	}
	return taken
}

// CheckPorts makes sure that what runs keeps its ports, which is a *provision.SpecError else, and
// that every port that a launch needs is free. That error is of the first one that is not (a
// *provision.PortTakenError) and says how many more there are.
func (p *Provider) CheckPorts(changes provision.Changes) error {
	old, _ := p.svc.readSlots() // without them nobody knows where it was
	have, err := p.svc.Objects()
	if err == nil {
		err = p.svc.checkBase(p.base(), old, have)
	}
	if err != nil {
		return err
	}
	var taken []*provision.PortTakenError
	for _, c := range changes {
		if c.Action != provision.ActionLaunch {
			continue
		}
		slots, err := p.slots(c.Want)
		if err != nil {
			return err
		}
		if of := p.taken(c.Want, slots.endpoints(c.ID(), c.Kind())); len(of) > 0 {
			if _, runs := p.runs(c.Want); !runs { // since it was planned: it has them itself
				taken = append(taken, of...)
			}
		}
	}
	if len(taken) == 0 {
		return nil
	}
	first := slices.MinFunc(taken, func(a, b *provision.PortTakenError) int { return strings.Compare(a.Addr, b.Addr) })
	first.Holder = p.svc.home.holder(first.Addr)
	if len(taken) == 1 {
		return first
	}
	return fmt.Errorf("%w (ports taken in all: %d)", first, len(taken))
}

// Fingerprint is that of the key of a machine, as its agent published it in a directory that only
// this user can write; empty while it has not.
func (p *Provider) Fingerprint(_ context.Context, o provision.Object) (string, error) {
	text, err := os.ReadFile(filepath.Join(p.svc.machineDir(o.ID), fileConsole))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the key of %s: %w", o.ID, err)
	}
	role := identity.Replica
	if o.Kind == provision.KindBalancer {
		role = identity.Balancer
	}
	f, _ := agent.FindLine(string(text), identity.Name{Service: cmp.Or(o.Service, p.svc.name), Role: role, ID: o.ID})
	return f, nil
}

// command is the process of an object: in a session of its own, so that it outlives this one and
// its terminal, and told which object it is.
func (p *Provider) command(o provision.Object, args []string) (*exec.Cmd, *logFile, error) {
	rec, err := json.Marshal(record{Object: o})
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(p.svc.objectDir(), dirMode); err != nil {
		return nil, nil, err
	}
	log, err := openLog(p.svc.LogFile(o.ID))
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(p.exe, args...)
	cmd.Args[0] = processName
	cmd.Stdout, cmd.Stderr = log.File, log.File
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	own := slices.DeleteFunc(os.Environ(), func(v string) bool { // it is told which token is in force
		return strings.HasPrefix(v, EnvAdminToken+"=")
	})
	cmd.Env = append(own, EnvObject+"="+p.svc.objectFile(o.ID), envRecord+"="+string(rec))
	return cmd, log, nil
}
