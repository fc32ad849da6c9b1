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

// A machine on this computer is a directory, which is its disk, and a process, which runs the agent. If its
// process has ended, it starts again with the same disk, like a VM.

// Names in the directories of a service and of a machine.
const (
	dirMachines = "machines"
	fileNode    = "node.json"
	fileConsole = "console"

	// fileKernelLog stands for the kernel's log of a replica's machine: a line such as
	// "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus." fails its simulated GPU.
	fileKernelLog = "kmsg"
	dirState      = "state"
	nodeFile      = "/etc/skyserve/node.json" // in the cloud-init document
	machineType   = "local"
	machinesLock  = "machines.lock"
)

// The offsets of further ports from local.port: of the agents of balancers, of the agents of replicas, of
// the ports where replicas serve balancers, and of the cache events of engines.
const (
	agentOffset        = 500
	replicaAgentOffset = 600
	replicaOffset      = 700
	// Engines publish cache events at eventsOffset, and send earlier ones again 100 ports above.
	eventsOffset = 800
	lastOffset   = service.LocalPorts
)

// The last kind of ports ends at lastOffset.
var _ = [1]int{}[lastOffset-eventsOffset-2*maxSlotsPerKind]

// MachineDir returns the directory that is the disk of a machine.
func (s Service) MachineDir(id string) string { return s.machineDir(id) }

func (s Service) machineDir(id string) string { return filepath.Join(s.dir, dirMachines, id) }

// labelName is the label with the address of a name server, host:port.
const labelName = "dns"

// WithSpec sets the service.yaml of the service, from which offerings and the order of ports are derived.
func (p *Provider) WithSpec(spec *service.Spec) *Provider {
	p.spec = spec
	return p
}

// Offerings returns this computer as an offering without GPUs, and with every GPU of service.yaml; simulated
// engines simulate the GPUs.
func (p *Provider) Offerings(_ context.Context, region service.Region) (provision.Offerings, error) {
	if p.spec == nil {
		return nil, nil
	}
	offer := provision.Offering{Type: machineType, Region: region, Capacity: service.CapacityOnDemand}
	all := provision.Offerings{offer}
	for _, m := range p.spec.Models {
		for _, g := range m.GPUs {
			offer.GPU, offer.GPUs = g.Type, g.Count
			if len(all.WithGPU(g.Type, g.Count)) == 0 {
				all = append(all, offer)
			}
		}
	}
	return all, nil
}

// Launch starts the process of a machine and returns when the process holds its object file.
func (p *Provider) Launch(ctx context.Context, w provision.Desired) (provision.Object, error) {
	if err := ctx.Err(); err != nil {
		return provision.Object{}, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	if w.Machine == nil {
		return provision.Object{}, fmt.Errorf("starting %s: machine configuration is required", w.ID)
	}
	if err := os.MkdirAll(p.svc.objectDir(), dirMode); err != nil {
		return provision.Object{}, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	one, err := lockWait(ctx, filepath.Join(p.svc.objectDir(), w.ID+".lock"), startTimeout) // held until the process holds its object file
	if err != nil {
		return provision.Object{}, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	defer one.Close()
	rec, alive, err := readObject(p.svc.objectFile(w.ID))
	switch {
	case alive && err == nil && rec.SpecHash == w.SpecHash:
		return p.svc.objectFromRecord(w.ID, rec, true, nil), nil
	case alive:
		return provision.Object{}, fmt.Errorf("starting %s: already running with another configuration", w.ID)
	}
	started, err := p.startMachine(ctx, w, rec)
	if err != nil {
		if o, runs := p.runningMachine(w); runs { // another command started it meanwhile; it uses these ports
			return o, nil
		}
		return provision.Object{}, err
	}
	return p.waitHeld(ctx, w, started.cmd, started.log)
}

// runningMachine returns the desired machine, if a process holds its object.
func (p *Provider) runningMachine(w provision.Desired) (o provision.Object, runs bool) {
	rec, alive, err := readObject(p.svc.objectFile(w.ID))
	if !alive || err != nil || rec.SpecHash != w.SpecHash {
		return o, false
	}
	return p.svc.objectFromRecord(w.ID, rec, true, nil), true
}

// startedProcess is a started process.
type startedProcess struct {
	cmd *exec.Cmd
	log int64 // offset of its first log line
}

// startMachine starts a machine's process. dead is the record of the previous process, if any.
func (p *Provider) startMachine(ctx context.Context, w provision.Desired, dead record) (started startedProcess, err error) {
	lock, err := lockWait(ctx, p.svc.configFile(machinesLock), homeTimeout)
	if err != nil {
		return started, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	defer lock.Close()
	runs, err := p.programFor(ctx, w)
	if err != nil {
		return started, err
	}
	at, err := p.endpoints(w)
	if err != nil {
		return started, err
	}
	dir := p.svc.machineDir(w.ID)
	o := p.objectOf(w, at)
	o.BuildHash = runs.build
	if o.Handle = dead.Object.Handle; dead.SpecHash != w.SpecHash || o.Handle == "" {
		o.Handle = "local-" + strings.ToLower(rand.Text()[:12])
		if err := os.RemoveAll(dir); err != nil {
			return started, fmt.Errorf("starting %s: %w", w.ID, err)
		}
	} else {
		o.Labels = dead.Labels
	}
	file, err := writeAgentConfig(dir, w.Machine.UserData, at)
	if err != nil {
		return started, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	cmd, log, err := p.command(runs.exe, o, []string{"node", "--config", file})
	if err != nil {
		return started, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	started = startedProcess{cmd, log.size()}
	err = cmd.Start()
	log.Close()
	if err != nil {
		return started, fmt.Errorf("starting %s: %w", w.ID, err)
	}
	return started, nil
}

// writeAgentConfig writes the configuration of a machine's agent, taken from its cloud-init document.
func writeAgentConfig(dir, document string, at provision.MachineEndpoints) (file string, err error) {
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
	config.Listen, config.Dir = at.Listen.Agent, filepath.Join(dir, dirState)
	config.Publish, config.Runner, config.PollCloud = "console:"+filepath.Join(dir, fileConsole), agent.RunnerInProcess, ""
	if config.Role == identity.Replica {
		config.KernelLog = filepath.Join(dir, fileKernelLog)
	}
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

// objectOf returns the object of a machine that is about to start.
func (p *Provider) objectOf(w provision.Desired, at provision.MachineEndpoints) provision.Object {
	o := provision.Object{
		ID: w.ID, Kind: w.Kind, Service: w.Service, Owner: w.Owner, Region: w.Region, SpecHash: w.SpecHash, ImmutableHash: w.ImmutableHash,
		Labels: w.Labels, CostPerHour: w.CostPerHour, Endpoints: at, PublicIP: netip.MustParseAddr(loopback), PrivateIP: netip.MustParseAddr(loopback),
	}
	if len(w.Offerings) > 0 {
		o.Offering = &w.Offerings[0]
	}
	scheme := "http://"
	if p.spec != nil && p.spec.Balancer.TLS != nil {
		scheme = "https://"
	}
	switch w.Kind {
	case provision.KindBalancer:
		o.Address, o.Admin = scheme+at.Listen.Public, "http://"+at.Listen.Admin
	case provision.KindNameServer:
		o.Address = "dns://" + w.Labels[labelName]
	default:
		o.Address = "http://" + at.Engine
	}
	return o
}

// endpoints assigns ports to a machine. The machine keeps them while its process or its disk exists. The
// caller holds machinesLock. A port in use is a *provision.PortTakenError.
func (p *Provider) endpoints(w provision.Desired) (at provision.MachineEndpoints, err error) {
	slots, err := p.portSlots(w)
	if err != nil {
		return at, err
	}
	at = slots.endpoints(w.ID, w.Kind)
	if taken := p.portsInUse(w, at); len(taken) > 0 {
		return at, taken[0]
	}
	text, err := json.Marshal(slots)
	if err == nil {
		err = writeFile(p.svc.configFile(fileSlots), text)
	}
	return at, err
}

// basePort returns the first port of the service.
func (p *Provider) basePort() int {
	if p.spec == nil {
		return defaultPort
	}
	return p.spec.LocalHosts.Port
}

// portSlots returns the port slots of the service's machines, including all of launches.
func (p *Provider) portSlots(launches ...provision.Desired) (slotFile, error) {
	balancers, engines := []string{}, []string{}
	if p.spec != nil {
		balancers, engines = slotIDs(p.spec)
	}
	for _, w := range launches {
		if w.Kind == provision.KindBalancer {
			balancers = append(balancers, w.ID)
		} else {
			engines = append(engines, w.ID)
		}
	}
	slots, err := p.svc.assignSlots(p.basePort(), balancers, engines)
	if err == nil {
		err = slots.check()
	}
	return slots, err
}

// PublicAddress returns host:port where a desired balancer serves clients.
func (p *Provider) PublicAddress(w provision.Desired) (string, error) {
	slots, err := p.portSlots(w)
	return slots.endpoints(w.ID, w.Kind).Listen.Public, err
}

// portsInUse returns the ports of a machine that are in use.
func (p *Provider) portsInUse(w provision.Desired, at provision.MachineEndpoints) []*provision.PortTakenError {
	var taken []*provision.PortTakenError
	for _, used := range portsOf(at, w.Kind, w.Labels[labelName]) {
		if IsPortInUse(used.addr) {
			taken = append(taken, p.portTaken(w, used, ""))
		}
	}
	return taken
}

// portTaken returns the error about a port that a machine requires.
func (p *Provider) portTaken(w provision.Desired, used usedPort, holder string) *provision.PortTakenError {
	have, _ := p.svc.Objects() // after an error the advice is that of a service that does not run
	fixed := used.setting == PortSetting && slices.ContainsFunc(have, isRunning)
	return &provision.PortTakenError{Addr: used.addr, Holder: holder, ID: w.ID, Service: p.svc.name, Purpose: used.purpose, Setting: used.setting, Fixed: fixed}
}

// CheckPorts checks that running machines keep their ports, and that the ports of all launches are free. If
// running machines would change ports, the error is a *provision.SpecError. If ports are in use, the error
// contains a *provision.PortTakenError for the first one, if possible one that a known object uses, and their number.
func (p *Provider) CheckPorts(changes provision.Changes) error {
	old, _ := p.svc.readSlots() // after an error the earlier ports are unknown
	have, err := p.svc.Objects()
	if err == nil {
		err = p.svc.checkBase(p.basePort(), old, have)
	}
	if err != nil {
		return err
	}
	var launches []provision.Desired
	for _, c := range changes {
		if c.Action == provision.ActionLaunch {
			launches = append(launches, c.Desired)
		}
	}
	if len(launches) == 0 {
		return nil
	}
	slots, err := p.portSlots(launches...) // together, because each takes a slot that the next one cannot have
	if err != nil {
		return err
	}
	var taken []*provision.PortTakenError
	assigned := p.svc.home.portUsers(func(name string) bool { return name != p.svc.name })
	for _, w := range launches {
		at := slots.endpoints(w.ID, w.Kind)
		of := p.portsInUse(w, at)
		for _, used := range allPortsOf(at, w.Kind) {
			// The ports of a controller and of a store that is not bound yet, and of a process that starts.
			if holder := assigned[used.addr]; holder != "" && !slices.ContainsFunc(of, func(e *provision.PortTakenError) bool { return e.Addr == used.addr }) {
				e := p.portTaken(w, used, holder)
				e.Reserved = !IsPortInUse(used.addr)
				of = append(of, e)
			}
		}
		if len(of) > 0 {
			if _, runs := p.runningMachine(w); !runs { // another command launched it meanwhile; it uses its own ports
				taken = append(taken, of...)
			}
		}
	}
	if len(taken) == 0 {
		return nil
	}
	users := p.svc.home.portUsers(func(string) bool { return true })
	for _, e := range taken {
		e.Holder = cmp.Or(e.Holder, users[e.Addr])
	}
	first := slices.MinFunc(taken, func(a, b *provision.PortTakenError) int {
		return cmp.Or(cmp.Compare(min(len(b.Holder), 1), min(len(a.Holder), 1)), strings.Compare(a.Addr, b.Addr)) // a known holder first
	})
	switch len(taken) {
	case 1:
		return first
	case 2:
		return fmt.Errorf("%w; another required port is in use too", first)
	}
	return fmt.Errorf("%w; %d further required ports are in use too", first, len(taken)-1)
}

// Fingerprint returns the fingerprint of a machine's key, as its agent published it in a directory that
// only this user can write; empty until then.
func (p *Provider) Fingerprint(_ context.Context, o provision.Object) (string, error) {
	text, err := os.ReadFile(filepath.Join(p.svc.machineDir(o.ID), fileConsole))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the key fingerprint of %s: %w", o.ID, err)
	}
	role := identity.Replica
	if o.Kind == provision.KindBalancer {
		role = identity.Balancer
	}
	f, _ := agent.FindConsoleLine(string(text), identity.Name{Service: cmp.Or(o.Service, p.svc.name), Role: role, ID: o.ID})
	return f, nil
}

// command returns the process of an object. It runs in its own session, so that it continues to run when this
// process or the terminal ends. Its environment contains its object.
func (p *Provider) command(exe string, o provision.Object, args []string) (*exec.Cmd, *logFile, error) {
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
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = processName
	cmd.Stdout, cmd.Stderr = log.File, log.File
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	own := slices.DeleteFunc(os.Environ(), func(v string) bool { // the process reads its token from its configuration
		return strings.HasPrefix(v, EnvAdminToken+"=")
	})
	cmd.Env = append(own, EnvObject+"="+p.svc.objectFile(o.ID), envRecord+"="+string(rec))
	return cmd, log, nil
}
