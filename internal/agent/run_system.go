package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/atomicfile"
	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
)

// System runs programs as systemd units, and images as Docker containers, so that they outlive
// the agent.
type System struct {
	// Dir is the agent's directory, in which programs run.
	Dir string
	// UnitDir is the directory of systemd units; empty = /etc/systemd/system.
	UnitDir string
	// Call runs a program of the machine and returns its output; nil = with os/exec.
	Call func(ctx context.Context, program string, args ...string) (output string, err error)
	// FetchBucket downloads weights from a bucket into a directory; nil = with the machine's identity.
	FetchBucket func(ctx context.Context, from, dir string, report func(telemetry.ByteCount)) error
	// FetchHub downloads a repository of the Hugging Face hub, ORG/NAME, into a directory, with an
	// access token; nil = from the hub.
	FetchHub func(ctx context.Context, repo, token, dir string, report func(telemetry.ByteCount)) error
}

const (
	unitPrefix   = "skyserve-"
	labelHash    = "skyserve.fixed"
	defaultUnits = "/etc/systemd/system"
	agentUnit    = "node" // the agent's own unit, skyserve-node: see templates/cloud-init.tmpl
)

// call runs a program and returns its output.
func (s *System) call(ctx context.Context, program string, args ...string) (string, error) {
	if s.Call != nil {
		return s.Call(ctx, program, args...)
	}
	var out bytes.Buffer
	err := runProgram(ctx, &out, program, args)
	return out.String(), err
}

// callLines runs a program and calls line with each line of its output.
func (s *System) callLines(ctx context.Context, line func(string), program string, args ...string) error {
	if s.Call == nil {
		return runProgram(ctx, &lineWriter{line: line}, program, args)
	}
	out, err := s.Call(ctx, program, args...)
	for text := range strings.Lines(out) {
		line(text)
	}
	return err
}

// runProgram runs a program that writes its output to stdout. An error contains the last lines of its stderr.
func runProgram(ctx context.Context, stdout io.Writer, program string, args []string) error {
	var out, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(stdout, &out), &stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	lines := lastLines(stderr.String(), tailLines)
	if len(lines) == 0 { // nvidia-smi prints GPU errors on stdout
		lines = lastLines(out.String(), tailLines)
	}
	return fmt.Errorf("%s %s: %w: %s", program, args[0], err, strings.Join(lines, "; "))
}

func (s *System) unitFile(name string) string {
	dir := s.UnitDir
	if dir == "" {
		dir = defaultUnits
	}
	return filepath.Join(dir, unitPrefix+name+".service")
}

// startedFile returns the path of the file with the hash of the last started version of a
// program.
func (s *System) startedFile(name string) string { return filepath.Join(s.Dir, name+".started") }

func (s *System) envFile(name string) string { return filepath.Join(s.Dir, name+".env") }

// containers lists the names of this service's containers; without Docker, there are none.
func (s *System) containers(ctx context.Context) ([]string, error) {
	if s.Call == nil {
		if _, err := exec.LookPath("docker"); errors.Is(err, exec.ErrNotFound) {
			return nil, nil
		}
	}
	out, err := s.call(ctx, "docker", "ps", "--all", "--filter", "label="+labelHash, "--format", "{{.Names}}")
	if err != nil {
		return nil, err
	}
	return strings.Fields(out), nil
}

// Names returns the units that have a unit file or a container.
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
func (s *System) Start(ctx context.Context, u Unit, report func(Progress)) (started bool, err error) {
	if u.Name == agentUnit {
		return false, fmt.Errorf("the name of a unit must not be %q: it is reserved for the agent", agentUnit)
	}
	if u.Image != "" {
		return s.startContainer(ctx, u, report)
	}
	return s.startProgram(ctx, u)
}

// startProgram starts a program as a systemd unit. After the start it writes startedFile, which
// identifies the running version: the unit file may be newer.
func (s *System) startProgram(ctx context.Context, u Unit) (started bool, err error) {
	last, err := os.ReadFile(s.startedFile(u.Name))
	if err == nil && string(last) == u.immutableHash() {
		if state, err := s.call(ctx, "systemctl", "is-active", unitPrefix+u.Name); err == nil && strings.TrimSpace(state) == "active" {
			return false, nil
		}
	}
	if err := s.removeContainer(ctx, unitPrefix+u.Name); err != nil { // a container of an earlier deployment uses its port
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
	if err := atomicfile.WriteFile(s.unitFile(u.Name), []byte(s.unitText(u)), 0o644); err != nil { // contains no secret
		return false, err
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", unitPrefix + u.Name}, {"restart", unitPrefix + u.Name}} {
		if _, err := s.call(ctx, "systemctl", args...); err != nil {
			return false, err
		}
	}
	return true, identity.WriteFile(s.startedFile(u.Name), []byte(u.immutableHash()))
}

// quoteValue quotes a value for an environment file (systemd.exec(5)).
func quoteValue(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", `$`, `\$`).Replace(value) + `"`
}

// quoteArg quotes an argument for ExecStart (systemd.service(5)).
func quoteArg(arg string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, `$`, `$$`, "\n", `\n`, "\r", `\r`).Replace(arg) + `"`
}

// unitText returns the systemd unit of a program.
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

// startContainer starts a container, unless the same version is running. Before the start it prepares
// the machine.
func (s *System) startContainer(ctx context.Context, u Unit, report func(Progress)) (started bool, err error) {
	name := unitPrefix + u.Name
	runningHash, err := s.call(ctx, "docker", "ps", "--filter", "name=^"+name+"$", "--format", `{{.Label "`+labelHash+`"}}`)
	if err == nil && strings.TrimSpace(runningHash) == u.immutableHash() {
		return false, nil
	}
	rank, err := s.prepare(ctx, u, report)
	if err != nil {
		return false, err
	}
	if err := s.Stop(ctx, u.Name); err != nil {
		return false, err
	}
	if err := s.removeOldVolumes(ctx, u); err != nil {
		return false, err
	}
	env := strings.Join(u.environment(), "\n") + "\n"
	if err := identity.WriteFile(s.envFile(u.Name), []byte(env)); err != nil {
		return false, err
	}
	_, err = s.call(ctx, "docker", append(s.runArgs(u), rank...)...)
	return err == nil, err
}

// maxProcesses limits the processes and threads of a container. The ranks of an engine on a machine
// with 8 GPUs and 192 cores have a few thousand.
const maxProcesses = 32768

// gpuArgs are the arguments of docker for a container with GPUs. The ranks of an engine exchange tensors
// in shared memory (NCCL and the engines' message queues): --ipc host gives /dev/shm half of the
// machine's memory; --shm-size would need a size for each machine type.
// Nothing else runs in that namespace but the agent. Memory may be pinned and stacks have 64 MiB, as
// NVIDIA's PyTorch images are commonly started. The limit of files is that of our systemd units: enough for
// a socket for each rank and request.
var gpuArgs = []string{"--gpus", "all", "--ipc", "host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864", "--ulimit", "nofile=1048576"}

// runArgs returns the arguments of docker that start a container. Its port is published on loopback
// only, its log is limited, and it has none of the capabilities that root has in a container by
// default. vLLM and SGLang need none: they do not change their user and write only files of that
// user. They may log warnings that they cannot bind memory to NUMA nodes: that requires CAP_SYS_NICE,
// which containers do not have by default either.
func (s *System) runArgs(u Unit) []string {
	port := strconv.Itoa(u.Port)
	args := []string{
		"run", "--detach", "--name", unitPrefix + u.Name, "--label", labelHash + "=" + u.immutableHash(), "--restart", "unless-stopped",
		"--publish", "127.0.0.1:" + port + ":" + port, "--env-file", s.envFile(u.Name), "--log-driver", "json-file", "--log-opt", "max-size=20m", "--log-opt", "max-file=2",
		"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", strconv.Itoa(maxProcesses),
	}
	if u.Memory > 0 {
		args = append(args, "--memory", strconv.FormatInt(u.Memory, 10))
	}
	for _, more := range u.MorePorts {
		port := strconv.Itoa(more)
		args = append(args, "--publish", "127.0.0.1:"+port+":"+port)
	}
	if u.GPUs {
		args = append(args, gpuArgs...)
	}
	if u.CacheDir != "" {
		args = append(args, "--volume", filepath.Join(s.Dir, "cache")+":"+u.CacheDir)
	}
	args = append(args, volumeArgs(u)...)
	if w := u.Weights; w != nil {
		args = append(args, "--volume", weightsDir(s.Dir, w.Source)+":"+w.MountPath+":ro")
	}
	for _, a := range u.Adapters {
		args = append(args, "--volume", weightsDir(s.Dir, a.Source)+":"+a.MountPath+":ro")
	}
	return append(append(args, u.Image), u.Args...)
}

// isProgram reports whether a systemd unit of that name exists.
func (s *System) isProgram(name string) bool {
	_, err := os.Stat(s.unitFile(name))
	return err == nil
}

// Reload reloads a program; a container has no reload.
func (s *System) Reload(ctx context.Context, name string) error {
	if !s.isProgram(name) {
		return nil
	}
	_, err := s.call(ctx, "systemctl", "reload", unitPrefix+name)
	return err
}

// Stop stops the program or container of a unit, and removes its unit file, environment file and
// startedFile. Agent.removeStale removes Unit.Files.
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

// removeContainer stops and removes a container; a missing one is no error.
func (s *System) removeContainer(ctx context.Context, name string) error {
	names, err := s.containers(ctx)
	if err != nil || !slices.Contains(names, name) {
		return err
	}
	if _, err := s.call(ctx, "docker", "stop", "--time", strconv.Itoa(int(stopGrace.Seconds())), name); err != nil {
		return err
	}
	_, err = s.call(ctx, "docker", "rm", "--force", name)
	return err
}
