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
	// Dir contains the machines' disks, Program is the skyserve executable that they run, with a path
	// that ends in /skyserve.
	Dir, Program string
	// Environment is the environment of machines. Variables with credentials of a cloud, such as those
	// that begin with AWS_ and GOOGLE_, are removed: machines have the identity that their cloud gives
	// them.
	Environment []string
	// Regions are those of AWS; Google Cloud has its own. Project is Google's.
	Regions []string
	Project string
	// Faults decides the outcome of calls.
	Faults *testcloud.Faults
	// Ended is called for each machine that ended or could not be started, with the cloud's id, the
	// error (nil for a requested end) and the end of its log.
	OnEnded func(name string, err error, log string)
}

// Clouds are AWS, with Route 53, and Google Cloud.
type Clouds struct {
	AWS     *testcloud.AWS
	Google  *testcloud.GCE
	Route53 *testcloud.Route53

	opts Options

	booting sync.RWMutex // held for reading while a machine boots
	closed  bool         // no machine boots any more

	mu          sync.Mutex
	running     int
	agents      map[string]*os.Process // by their ids in the service
	stops       []func()
	interrupted map[string]bool // by the cloud's id: with an interruption notice
	rebalanced  map[string]bool // by the cloud's id: with a rebalance recommendation
}

// New returns clouds without machines.
func New(o Options) *Clouds {
	c := &Clouds{
		opts: o, agents: map[string]*os.Process{}, interrupted: map[string]bool{}, rebalanced: map[string]bool{},
		AWS: testcloud.NewAWS(o.Faults, o.Regions...), Google: testcloud.NewGCE(o.Project, o.Faults), Route53: testcloud.NewRoute53(o.Faults),
	}
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

// Amazon serves AWS and Route 53 as one endpoint.
func (c *Clouds) AWSHandler() http.Handler {
	names := c.Route53.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/2013-04-01/") {
			names.ServeHTTP(w, r)
			return
		}
		c.AWS.ServeHTTP(w, r)
	})
}

// networks counts the networks of all clouds in this process.
var networks atomic.Int32

// newNetwork returns a function with the addresses of the nth machine. They depend on the process id, so
// that two processes rarely use the same.
func newNetwork() func(n int) (public, private string) {
	network := networks.Add(1)
	return func(n int) (public, private string) {
		ip := fmt.Sprintf("127.%d.%d.%d", 100+os.Getpid()%100, n%256, network)
		return ip, ip
	}
}

// Runs returns the clouds' ids of the running machines, by their ids in the service.
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

// Running returns the number of running agents, including those of ended machines whose processes have
// not exited yet.
func (c *Clouds) RunningAgents() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running
}

// Agent returns the process of a machine's agent; nil without one.
func (c *Clouds) AgentProcess(id string) *os.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agents[id]
}

// Announce sends a machine an interruption notice, by its id in the service, and returns the cloud's id.
// Take ends the machine. It is an error if the machine does not run.
func (c *Clouds) SendInterruptionNotice(id string) (name string, err error) {
	return c.markMachine(c.interrupted, id)
}

// Advise sends a machine a rebalance recommendation of AWS.
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

// Take interrupts a machine, by the cloud's id.
func (c *Clouds) InterruptMachine(name string) {
	c.mu.Lock()
	delete(c.interrupted, name) // Google may give another machine the same name
	c.mu.Unlock()
	if !c.Google.PreemptInstance(name) {
		c.AWS.InterruptInstance(name)
	}
}

// Vanish ends a machine without notice, as a person would by hand.
func (c *Clouds) TerminateWithoutNotice(name string) {
	for _, m := range c.Google.Instances() {
		if m.Name == name {
			c.Google.SetInstanceStatus(name, "TERMINATED")
			return
		}
	}
	c.AWS.TerminateInstance(name)
}

// Close ends all machines and waits for them. None boots afterwards.
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
