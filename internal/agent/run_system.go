package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/atomicfile"
	"skyserve/internal/identity"
)

// System runs programs as units of systemd, and images as containers of Docker, so that
// they outlive the agent.
type System struct {
	// Dir is the agent's directory, in which programs run.
	Dir string
	// Units is where systemd reads units from; empty = /etc/systemd/system.
	Units string
	// Call runs a program of the machine and returns what it wrote; nil = it does.
	Call func(ctx context.Context, program string, args ...string) (output string, err error)
	// Fetch brings weights from a bucket into a directory; nil = as the machine.
	Fetch func(ctx context.Context, from, dir string, report func(string)) error
}

const (
	unitPrefix   = "skyserve-"
	labelFixed   = "skyserve.fixed"
	defaultUnits = "/etc/systemd/system"
	agentUnit    = "node" // the agent's own: see templates
)

func (s *System) call(ctx context.Context, program string, args ...string) (string, error) {
	if s.Call != nil {
		return s.Call(ctx, program, args...)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := lastLines(stderr.String(), tailLines)
		if len(said) == 0 { // nvidia-smi tells on stdout what is wrong with a GPU
			said = lastLines(string(out), tailLines)
		}
		return string(out), fmt.Errorf("%s %s: %w: %s", program, args[0], err, strings.Join(said, "; "))
	}
	return string(out), nil
}

func (s *System) unitFile(name string) string {
	dir := s.Units
	if dir == "" {
		dir = defaultUnits
	}
	return filepath.Join(dir, unitPrefix+name+".service")
}

// startedFile says with which hash a program was started last.
func (s *System) startedFile(name string) string { return filepath.Join(s.Dir, name+".started") }

func (s *System) envFile(name string) string { return filepath.Join(s.Dir, name+".env") }

// containers lists the names of this service's containers; none without Docker.
func (s *System) containers(ctx context.Context) ([]string, error) {
	if s.Call == nil {
		if _, err := exec.LookPath("docker"); errors.Is(err, exec.ErrNotFound) {
			return nil, nil
		}
	}
	out, err := s.call(ctx, "docker", "ps", "--all", "--filter", "label="+labelFixed, "--format", "{{.Names}}")
	if err != nil {
		return nil, err
	}
	return strings.Fields(out), nil
}

// Names are the units whose files or containers are there.
func (s *System) Names(ctx context.Context) ([]string, error) {
	names, err := s.containers(ctx)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(s.unitFile("*"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".service"))
	}
	for i, name := range names {
		names[i] = strings.TrimPrefix(name, unitPrefix)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == agentUnit })
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Start starts a program or a container.
func (s *System) Start(ctx context.Context, u Unit, report func(Phase, string)) (started bool, err error) {
	if u.Name == agentUnit {
		return false, fmt.Errorf("the name %s is the agent's own", agentUnit)
	}
	if u.Image != "" {
		return s.startContainer(ctx, u, report)
	}
	return s.startProgram(ctx, u)
}

// startProgram starts a program as a unit of systemd. That it runs as it should is known
// by a file that is written once it was started: a unit's file alone may be newer than
// what runs.
func (s *System) startProgram(ctx context.Context, u Unit) (started bool, err error) {
	last, err := os.ReadFile(s.startedFile(u.Name))
	if err == nil && string(last) == u.fixed() {
		if state, err := s.call(ctx, "systemctl", "is-active", unitPrefix+u.Name); err == nil && strings.TrimSpace(state) == "active" {
			return false, nil
		}
	}
	if err := s.removeContainer(ctx, unitPrefix+u.Name); err != nil { // what was one has its port
		return false, err
	}
	var env strings.Builder
	for _, line := range u.environment() {
		name, value, _ := strings.Cut(line, "=")
		fmt.Fprintf(&env, "%s=%s\n", name, quoteValue(value))
	}
	if err := identity.WriteFile(s.envFile(u.Name), []byte(env.String())); err != nil {
		return false, err
	}
	if err := atomicfile.WriteFile(s.unitFile(u.Name), []byte(s.unitText(u)), 0o644); err != nil { // it holds no secret
		return false, err
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", unitPrefix + u.Name}, {"restart", unitPrefix + u.Name}} {
		if _, err := s.call(ctx, "systemctl", args...); err != nil {
			return false, err
		}
	}
	return true, identity.WriteFile(s.startedFile(u.Name), []byte(u.fixed()))
}

// quoteValue writes a value as a file of variables has it (systemd.exec(5)).
func quoteValue(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", `$`, `\$`).Replace(value) + `"`
}

// quoteArg writes an argument as ExecStart has it (systemd.service(5)).
func quoteArg(arg string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, `$`, `$$`, "\n", `\n`, "\r", `\r`).Replace(arg) + `"`
}

// unitText is a program as a unit of systemd.
func (s *System) unitText(u Unit) string {
	words := make([]string, len(u.Args))
	for i, arg := range u.Args {
		words[i] = quoteArg(arg)
	}
	memory := ""
	if u.Memory > 0 {
		memory = "MemoryMax=" + strconv.FormatInt(u.Memory, 10) + "\n"
	}
	return `[Unit]
Description=skyserve ` + u.Name + `
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
WorkingDirectory=` + s.Dir + `
EnvironmentFile=` + s.envFile(u.Name) + `
ExecStart=` + strings.Join(words, " ") + `
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=1
LimitNOFILE=1048576
` + memory + `NoNewPrivileges=yes
ProtectHome=yes
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
`
}

// startContainer starts a container unless the same runs, after it made sure that GPUs
// can be used and that the image is there.
func (s *System) startContainer(ctx context.Context, u Unit, report func(Phase, string)) (started bool, err error) {
	name := unitPrefix + u.Name
	have, err := s.call(ctx, "docker", "ps", "--filter", "name=^"+name+"$", "--format", `{{.Label "`+labelFixed+`"}}`)
	if err == nil && strings.TrimSpace(have) == u.fixed() {
		return false, nil
	}
	if u.GPUs {
		report(PhasePreparing, "looking for the GPU's driver")
		if _, err := s.call(ctx, "nvidia-smi", "-L"); err != nil {
			return false, fmt.Errorf("the GPU's driver: %w", err)
		}
	}
	if err := s.pull(ctx, u.Image, report); err != nil {
		return false, err
	}
	if w := u.Weights; w != nil {
		fetch := s.Fetch
		if fetch == nil {
			fetch = fetchWeights
		}
		if err := fetch(ctx, w.From, weightsDir(s.Dir, w), func(how string) { report(PhaseWeights, how) }); err != nil {
			return false, err
		}
	}
	if err := s.Stop(ctx, u.Name); err != nil {
		return false, err
	}
	env := strings.Join(u.environment(), "\n") + "\n"
	if err := identity.WriteFile(s.envFile(u.Name), []byte(env)); err != nil {
		return false, err
	}
	_, err = s.call(ctx, "docker", s.runArgs(u)...)
	return err == nil, err
}

// noSpaceMessage is how Docker tells that a disk is full.
const noSpaceMessage = "no space left on device"

// pull gets an image that is not there. Where the disk is full, images that nothing runs,
// such as that of an earlier deployment, make room for it.
func (s *System) pull(ctx context.Context, image string, report func(Phase, string)) error {
	if _, err := s.call(ctx, "docker", "image", "inspect", "--format", "{{.Id}}", image); err == nil {
		return nil
	}
	report(PhaseImage, image)
	_, err := s.call(ctx, "docker", "pull", "--quiet", image)
	if err == nil || !strings.Contains(err.Error(), noSpaceMessage) {
		return err
	}
	if _, failed := s.call(ctx, "docker", "image", "prune", "--all", "--force"); failed != nil {
		return errors.Join(err, failed)
	}
	_, err = s.call(ctx, "docker", "pull", "--quiet", image)
	return err
}

// maxProcesses bounds the processes and threads of a container. The ranks of an engine on a machine
// with 8 GPUs and 192 cores have some thousands.
const maxProcesses = 32768

// runArgs start a container: its port on loopback only, its log bounded, without any of the
// capabilities that root has in a container by default. vLLM and SGLang need none: they start as the
// user that they run as, write to what that user owns, and have warnings at most where the kernel
// keeps them from binding memory to NUMA nodes, which takes a capability that Docker never gave.
func (s *System) runArgs(u Unit) []string {
	port := strconv.Itoa(u.Port)
	args := []string{
		"run", "--detach", "--name", unitPrefix + u.Name, "--label", labelFixed + "=" + u.fixed(), "--restart", "unless-stopped",
		"--publish", "127.0.0.1:" + port + ":" + port, "--env-file", s.envFile(u.Name), "--log-driver", "json-file", "--log-opt", "max-size=20m", "--log-opt", "max-file=2",
		"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", strconv.Itoa(maxProcesses),
	}
	if u.Memory > 0 {
		args = append(args, "--memory", strconv.FormatInt(u.Memory, 10))
	}
	if u.GPUs {
		args = append(args, "--gpus", "all", "--ipc", "host") // ranks of an engine share memory
	}
	if u.Cache != "" {
		args = append(args, "--volume", filepath.Join(s.Dir, "cache")+":"+u.Cache)
	}
	if w := u.Weights; w != nil {
		args = append(args, "--volume", weightsDir(s.Dir, w)+":"+w.To+":ro")
	}
	return append(append(args, u.Image), u.Args...)
}

// isProgram says whether a unit of systemd is there under a name.
func (s *System) isProgram(name string) bool {
	_, err := os.Stat(s.unitFile(name))
	return err == nil
}

// Reload tells a program; a container cannot be told.
func (s *System) Reload(ctx context.Context, name string) error {
	if !s.isProgram(name) {
		return nil
	}
	_, err := s.call(ctx, "systemctl", "reload", unitPrefix+name)
	return err
}

// Stop ends a program and a container of that name, and removes what they were made of,
// their secrets with it.
func (s *System) Stop(ctx context.Context, name string) error {
	if s.isProgram(name) {
		if _, err := s.call(ctx, "systemctl", "disable", "--now", unitPrefix+name); err != nil {
			return err
		}
		if err := os.Remove(s.unitFile(name)); err != nil {
			return err
		}
	}
	if err := s.removeContainer(ctx, unitPrefix+name); err != nil {
		return err
	}
	for _, file := range []string{s.envFile(name), s.startedFile(name)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// removeContainer ends a container; none of that name is no error.
func (s *System) removeContainer(ctx context.Context, name string) error {
	have, err := s.containers(ctx)
	if err != nil || !slices.Contains(have, name) {
		return err
	}
	if _, err := s.call(ctx, "docker", "stop", "--time", strconv.Itoa(int(stopGrace.Seconds())), name); err != nil {
		return err
	}
	_, err = s.call(ctx, "docker", "rm", "--force", name)
	return err
}
