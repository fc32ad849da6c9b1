package machines

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/testcloud"
)

// consoleInterval is the interval at which console output is sent to the cloud.
const consoleInterval = 50 * time.Millisecond

// credentialPrefixes are the prefixes of variables with cloud credentials. They are removed from the environment
// of machines, which read credentials from their metadata server.
var credentialPrefixes = []string{"AWS_", "GOOGLE_", "GCE_", "CLOUDSDK_"}

// oneProcessor gives each machine one processor. Emulated machines are idle most of the time, and the scheduler of an
// idle process costs less with one.
const oneProcessor = "GOMAXPROCS=1"

// boot starts the agent of a machine's cloud-init document; it omits the parts that require a real machine.
// metadataEnv returns the environment variable with the address of the metadata server, from its host and port.
// onConsole receives the console output. boot returns a function that ends the machine. At Google a machine may have the
// name of an earlier one, and then has its directory: it boots once the processes of that one have ended.
func (c *Clouds) boot(m testcloud.BootingMachine, metadataEnv func(host string) string, onConsole func(name identity.Name, text string)) func() {
	ended := make(chan struct{})
	c.mu.Lock()
	earlier := c.ended[m.ID]
	c.ended[m.ID] = ended
	c.mu.Unlock()
	start := func() func() { return c.start(m, metadataEnv, onConsole, sync.OnceFunc(func() { close(ended) })) }
	if earlier == nil {
		return start()
	}
	off := make(chan func(), 1)
	go func() {
		<-earlier
		off <- start()
	}()
	return func() { go func() { (<-off)() }() }
}

// start is boot without the wait. It calls ended once the machine has no processes.
func (c *Clouds) start(m testcloud.BootingMachine, metadataEnv func(host string) string, onConsole func(name identity.Name, text string), ended func()) func() {
	c.booting.RLock()
	defer c.booting.RUnlock()
	if c.closed {
		ended()
		return func() {} // the call was executed after its caller has exited
	}
	dir := filepath.Join(c.opts.Dir, m.ID)
	fail := func(err error) func() {
		c.opts.OnEnded(m.ID, fmt.Errorf("booting the machine: %w", err), "")
		ended()
		return func() {}
	}
	metadata, err := c.startMetadataServer(m)
	if err != nil {
		return fail(err)
	}
	config, file, err := c.prepare(m, dir, metadata.host)
	if err != nil {
		metadata.close()
		return fail(err)
	}
	var log tail
	program := c.opts.Program
	if c.opts.ProgramOf != nil {
		program = c.opts.ProgramOf(m.UserData)
	}
	own := slices.DeleteFunc(slices.Clone(c.opts.Environment), func(v string) bool {
		return slices.ContainsFunc(credentialPrefixes, func(prefix string) bool { return strings.HasPrefix(v, prefix) })
	})
	own = append(append(own, c.endpoints...), metadataEnv(metadata.host), oneProcessor)
	cmd := exec.Command(program, "node", "--config", file)
	if c.opts.Bootstrap {
		program = filepath.Join(dir, diskProgram)
		cmd = exec.Command("sh", "-c", startScript, filepath.Join(dir, diskBootstrap), program, file)
	}
	cmd.Stderr, cmd.Env = &log, append(own, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	if err := cmd.Start(); err != nil {
		metadata.close()
		return fail(err)
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	name := identity.Name{Service: config.Service, Role: config.Role, ID: config.ID}
	watching.Go(func() {
		watchConsole(strings.TrimPrefix(config.Publish, "console:"), stop, func(text string) { onConsole(name, text) })
	})
	off := sync.OnceFunc(func() {
		close(stop)
		// SIGTERM instead of an interrupt: background processes of shells ignore interrupts, and the agent
		// inherits this until it has installed its signal handlers.
		err := cmd.Process.Signal(syscall.SIGTERM)
		if errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		err = errors.Join(err, cmd.Wait())
		watching.Wait()
		metadata.close()
		c.opts.OnEnded(m.ID, err, log.String())
		c.recordAgent(config.ID, nil, -1, nil)
		ended()
	})
	c.recordAgent(config.ID, cmd.Process, 1, off)
	return func() { go off() } // the cloud does not wait
}

// prepare creates a machine's disk with the configuration of its agent, which contains the host and port
// of the metadata server.
func (c *Clouds) prepare(m testcloud.BootingMachine, dir, metadata string) (config agent.Config, file string, err error) {
	var document struct {
		Files []struct{ Path, Content string } `yaml:"write_files"`
	}
	if err := yaml.Unmarshal([]byte(m.UserData), &document); err != nil {
		return config, "", err
	}
	script := ""
	for _, f := range document.Files {
		if f.Path == "/etc/skyserve/node.json" {
			if err := json.Unmarshal([]byte(f.Content), &config); err != nil {
				return config, "", err
			}
		}
		if f.Path == pathBootstrap {
			script = f.Content
		}
	}
	config.Listen, config.Dir, config.Publish = m.Private+config.Listen, filepath.Join(dir, "state"), "console:"+filepath.Join(dir, "console")
	config.Metadata, config.Runner = "http://"+metadata, "exec"
	text, err := json.Marshal(config)
	if err == nil {
		err = os.RemoveAll(dir) // an earlier machine with this name had another disk
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	file = filepath.Join(dir, "node.json")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err == nil && c.opts.Bootstrap {
		err = writeBootstrap(dir, script)
	}
	return config, file, err
}

// recordAgent changes the number of running agents, and records a new machine's process and end function.
func (c *Clouds) recordAgent(id string, agent *os.Process, by int, end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running += by
	if agent != nil {
		c.agents[id] = agent
	}
	if end != nil {
		c.stops = append(c.stops, end)
	}
}

// watchConsole passes a machine's console output to onConsole until stop is closed.
func watchConsole(console string, stop chan struct{}, onConsole func(text string)) {
	ticker := time.NewTicker(consoleInterval)
	defer ticker.Stop()
	for passed := 0; ; {
		if f, err := os.Stat(console); err == nil && f.Size() > int64(passed) {
			if text, err := os.ReadFile(console); err == nil && len(text) > passed {
				onConsole(string(text[passed:]))
				passed = len(text)
			}
		}
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
	}
}

// tailBytes is the maximum size of the log that is kept per machine.
const tailBytes = 64 << 10

// tail is an io.Writer that keeps the last tailBytes.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-tailBytes):]
	return len(p), nil
}

// String returns the kept text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
