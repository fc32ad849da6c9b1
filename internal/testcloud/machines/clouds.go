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
	Ended func(name string, err error, log string)
}

// Clouds are AWS, with Route 53, and Google Cloud.
type Clouds struct {
	AWS    *testcloud.AWS
	Google *testcloud.GCE
	Names  *testcloud.Route53

	opts Options

	booting sync.RWMutex // held for reading while a machine boots
	closed  bool         // no machine boots any more

	mu      sync.Mutex
	running int
	agents  map[string]*os.Process // by their ids in the service
	ends    []func()
	taken   map[string]bool // by what the cloud calls them: about to be taken
	advised map[string]bool // likewise: recommended to be left
}

// New returns clouds without machines.
func New(o Options) *Clouds {
	c := &Clouds{
		opts: o, agents: map[string]*os.Process{}, taken: map[string]bool{}, advised: map[string]bool{},
		AWS: testcloud.NewAWS(o.Faults, o.Regions...), Google: testcloud.NewGCE(o.Project, o.Faults), Names: testcloud.NewRoute53(o.Faults),
	}
	c.AWS.Address, c.Google.Address = addresses(), addresses()
	c.AWS.Boot = func(m testcloud.Booted) func() {
		return c.boot(m, func(host string) string { return "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://" + host }, func(_ identity.Name, text string) { c.AWS.Print(m.ID, text) })
	}
	c.Google.Boot = func(m testcloud.Booted) func() {
		return c.boot(m, func(host string) string { return "GCE_METADATA_HOST=" + host }, func(name identity.Name, text string) {
			if fingerprint, found := agent.FindConsoleLine(text, name); found {
				c.Google.SetGuestAttribute(m.ID, agent.GuestAttributePath, fingerprint)
			}
		})
	}
	return c
}

// Amazon serves AWS and Route 53 as one endpoint.
func (c *Clouds) Amazon() http.Handler {
	names := c.Names.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/2013-04-01/") {
			names.ServeHTTP(w, r)
			return
		}
		c.AWS.ServeHTTP(w, r)
	})
}

// networks counts the networks that addresses were given in, of which each has its own.
var networks atomic.Int32

// addresses is a network: it gives the nth machine an address, which depends on the process
// so that two of them seldom meet.
func addresses() func(n int) (public, private string) {
	network := networks.Add(1)
	return func(n int) (public, private string) {
		ip := fmt.Sprintf("127.%d.%d.%d", 100+os.Getpid()%100, n%256, network)
		return ip, ip
	}
}

// Runs are what the clouds call the machines that run, by their ids in the service.
func (c *Clouds) Runs() map[string]string {
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

// Running is how many agents run, those included that their clouds have ended and that have
// not ended themselves yet.
func (c *Clouds) Running() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running
}

// Agent is the process of a machine's agent; nil without one.
func (c *Clouds) Agent(id string) *os.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agents[id]
}

// Announce has a machine of an id be told by its cloud that it is about to be taken, and
// returns what the cloud calls it. Take takes it. It is an error where none runs.
func (c *Clouds) Announce(id string) (name string, err error) { return c.tell(c.taken, id) }

// Advise has a machine be told that AWS recommends to leave it.
func (c *Clouds) Advise(id string) (name string, err error) { return c.tell(c.advised, id) }

func (c *Clouds) tell(list map[string]bool, id string) (name string, err error) {
	name, runs := c.Runs()[id]
	if !runs {
		return "", fmt.Errorf("finding the machine of %s: none runs", id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list[name] = true
	return name, nil
}

// Take ends a machine, by what its cloud calls it, as a cloud does that needs it back.
func (c *Clouds) Take(name string) {
	c.mu.Lock()
	delete(c.taken, name) // Google may call another one the same
	c.mu.Unlock()
	if !c.Google.Preempt(name) {
		c.AWS.Interrupt(name)
	}
}

// Vanish ends a machine without a word, as a person would by hand.
func (c *Clouds) Vanish(name string) {
	for _, m := range c.Google.Instances() {
		if m.Name == name {
			c.Google.SetStatus(name, "TERMINATED")
			return
		}
	}
	c.AWS.Vanish(name)
}

// Close ends all machines, and returns once they have. None boots afterwards.
func (c *Clouds) Close() {
	c.booting.Lock()
	c.closed = true
	c.booting.Unlock()
	c.mu.Lock()
	ends := c.ends
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, end := range ends {
		wg.Go(end)
	}
	wg.Wait()
}
