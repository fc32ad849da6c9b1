package machines

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/testcloud"
)

// Options configures the clouds.
type Options struct {
	// Dir contains the machines' disks. Program is the path of the skyserve binary that they run; it must end
	// in /skyserve.
	Dir, Program string
	// ProgramOf returns the binary of a machine by its cloud-init document, for a version of its own; nil = Program.
	ProgramOf func(userData string) string
	// Bootstrap runs each machine's bootstrap script, which downloads the binary that the machine runs, instead
	// of Program.
	Bootstrap bool
	// Environment is the environment of machines. Variables with credentials of a cloud (AWS_, GOOGLE_, ...)
	// are removed: machines use the credentials that their cloud assigns to them.
	Environment []string
	// Regions are the regions of AWS; those of Google Cloud are fixed. Project is the Google Cloud project.
	Regions []string
	Project string
	// Faults decides the outcome of calls.
	Faults *testcloud.Faults
	// OnEnded is called for each machine that ended or did not start, with the cloud's id, the error (nil for
	// a requested end) and the end of its log.
	OnEnded func(name string, err error, log string)
}

// Clouds are AWS, with Route 53, and Google Cloud, whose machines are processes.
type Clouds struct {
	AWS     *testcloud.AWS
	Google  *testcloud.GCE
	Route53 *testcloud.Route53

	opts Options

	booting   sync.RWMutex // held for reading while a machine boots
	closed    bool         // no machine boots any more
	endpoints []string     // variables of SetEndpoints

	mu          sync.Mutex
	running     int
	agents      map[string]*os.Process   // by id in the service
	ended       map[string]chan struct{} // by the cloud's id: closed once the last machine with it has no processes
	stops       []func()
	interrupted map[string]bool // by the cloud's id: the machine has an interruption notice
	rebalanced  map[string]bool // by the cloud's id: the machine has a rebalance recommendation
}

// SetEndpoints sets the addresses of the clouds' APIs in the environment of machines that are launched later: for
// programs whose configuration has none, as the clouds' libraries read them.
func (c *Clouds) SetEndpoints(aws, google string) {
	c.booting.Lock()
	defer c.booting.Unlock()
	c.endpoints = []string{"AWS_ENDPOINT_URL=" + aws, "STORAGE_EMULATOR_HOST=" + google}
}

// New returns clouds without machines.
func New(o Options) *Clouds {
	c := &Clouds{
		opts: o, agents: map[string]*os.Process{}, ended: map[string]chan struct{}{}, interrupted: map[string]bool{}, rebalanced: map[string]bool{},
		AWS: testcloud.NewAWS(o.Faults, o.Regions...), Google: testcloud.NewGCE(o.Project, o.Faults), Route53: testcloud.NewRoute53(o.Faults),
	}
	c.Route53.Machines = c.AWS
	c.AWS.GoogleTokens, c.Google.VerifyAWS = c.Google.VerifyIdentityToken, c.AWS.VerifyCallerIdentity
	c.AWS.AssignAddresses, c.Google.AssignAddresses = newNetwork(), newNetwork()
	c.AWS.BootMachine = func(m testcloud.BootingMachine) func() {
		return c.boot(m, func(host string) string { return "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://" + host }, func(_ identity.Name, text string) { c.AWS.WriteConsole(m.ID, text) })
	}
	c.Google.BootMachine = func(m testcloud.BootingMachine) func() {
		return c.boot(m, func(host string) string { return "GCE_METADATA_HOST=" + host }, func(name identity.Name, text string) {
			if fingerprint, found := agent.FindConsoleLine(text, name); found {
				c.Google.SetGuestAttribute(m.ID, agent.GuestAttributePath, fingerprint)
			}
		})
	}
	return c
}

// AWSHandler serves AWS and Route 53 as one endpoint.
func (c *Clouds) AWSHandler() http.Handler {
	dns := c.Route53.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/2013-04-01/") {
			dns.ServeHTTP(w, r)
			return
		}
		c.AWS.ServeHTTP(w, r)
	})
}

// networks counts the networks of all clouds in this process.
var networks atomic.Int32

// newNetwork returns a function that returns the addresses of the nth machine. The addresses depend on the
// process id, so that concurrent test processes rarely use the same ones.
func newNetwork() func(n int) (public, private string) {
	network := networks.Add(1)
	return func(n int) (public, private string) {
		ip := fmt.Sprintf("127.%d.%d.%d", 100+os.Getpid()%100, n%256, network)
		return ip, ip
	}
}

// RunningMachineIDs returns the clouds' ids of the running machines, by id in the service.
func (c *Clouds) RunningMachineIDs() map[string]string {
	ids := map[string]string{}
	for _, m := range c.AWS.Machines() {
		ids[m.Tags["skyserve:id"]] = m.ID
	}
	for _, m := range c.Google.Instances() {
		if m.Status == "RUNNING" {
			ids[m.Labels["skyserve-id"]] = m.Name
		}
	}
	return ids
}

// RunningAgents returns the number of running agent processes, including those of ended machines that have not
// exited yet.
func (c *Clouds) RunningAgents() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running
}

// AgentProcess returns the process of a machine's agent, by id in the service; nil without one.
func (c *Clouds) AgentProcess(id string) *os.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agents[id]
}

// SendInterruptionNotice sends an interruption notice to a machine, by its id in the service, and returns the
// cloud's id. InterruptMachine then ends the machine. A machine that does not run is an error.
func (c *Clouds) SendInterruptionNotice(id string) (name string, err error) {
	return c.markMachine(c.interrupted, id)
}

// SendRebalanceRecommendation sends a rebalance recommendation of AWS to a machine, by its id in the service.
func (c *Clouds) SendRebalanceRecommendation(id string) (name string, err error) {
	return c.markMachine(c.rebalanced, id)
}

func (c *Clouds) markMachine(list map[string]bool, id string) (name string, err error) {
	name, runs := c.RunningMachineIDs()[id]
	if !runs {
		return "", fmt.Errorf("finding the machine of %s: not running", id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list[name] = true
	return name, nil
}

// InterruptMachine interrupts a machine, by the cloud's id.
func (c *Clouds) InterruptMachine(name string) {
	c.mu.Lock()
	delete(c.interrupted, name) // in Google Cloud a later machine may have the same name
	c.mu.Unlock()
	if !c.Google.PreemptInstance(name) {
		c.AWS.InterruptInstance(name)
	}
}

// TerminateWithoutNotice ends a machine without an interruption notice, like a user in the console.
func (c *Clouds) TerminateWithoutNotice(name string) {
	for _, m := range c.Google.Instances() {
		if m.Name == name {
			c.Google.SetInstanceStatus(name, "TERMINATED")
			return
		}
	}
	c.AWS.TerminateInstance(name)
}

// Close ends all machines and waits for their processes. No machine boots afterwards.
func (c *Clouds) Close() {
	c.booting.Lock()
	c.closed = true
	c.booting.Unlock()
	c.mu.Lock()
	ends := c.stops
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, end := range ends {
		wg.Go(end)
	}
	wg.Wait()
}
