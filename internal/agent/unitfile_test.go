package agent

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// directives are the directives of systemd.unit(5), systemd.service(5) and systemd.exec(5) that
// the units use: systemd ignores unknown and misspelt ones.
var directives = map[string][]string{
	"Unit":    {"Description", "After", "Wants", "StartLimitIntervalSec"},
	"Service": {"WorkingDirectory", "EnvironmentFile", "ExecStart", "ExecReload", "Restart", "RestartSec", "LimitNOFILE", "MemoryMax", "NoNewPrivileges", "ProtectHome", "PrivateTmp"},
	"Install": {"WantedBy"},
}

// readUnit parses the text of a unit like systemd.
func readUnit(text string) (values map[string]string, err error) {
	section, values := "", map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		if name, is := strings.CutPrefix(line, "["); is {
			section = strings.TrimSuffix(name, "]")
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		if !slices.Contains(directives[section], name) || values[name] != "" || strings.HasSuffix(value, `\`) {
			return nil, errors.New(section + ": " + line)
		}
		values[name] = value
	}
	return values, nil
}

// argsOf splits a command of double-quoted words by the rules of systemd.service(5) and
// systemd.syntax(7): escapes, then specifiers, then variables.
func argsOf(command string) ([]string, error) {
	var args []string
	var word strings.Builder
	quoted := false
	for i := 0; i < len(command); i++ {
		c := command[i]
		next := byte(0)
		if i+1 < len(command) {
			next = command[i+1]
		}
		switch {
		case c == '"' && quoted:
			args, quoted = append(args, word.String()), false
			word.Reset()
		case c == '"':
			quoted = true
		case !quoted && c == ' ':
		case !quoted:
			return nil, errors.New("outside quotes: " + command[i:])
		case c == '\\' && strings.IndexByte(`\"nr`, next) >= 0:
			word.WriteByte(map[byte]byte{'\\': '\\', '"': '"', 'n': '\n', 'r': '\r'}[next])
			i++
		case (c == '%' || c == '$') && next == c:
			word.WriteByte(c)
			i++
		case c == '\\' || c == '%' || c == '$' || c == '\n' || c == '\r':
			return nil, errors.New("systemd would expand " + command[i:])
		default:
			word.WriteByte(c)
		}
	}
	if quoted {
		return nil, errors.New("unterminated quote")
	}
	return args, nil
}

// systemd passes any arguments of a program unchanged.
func TestUnitFileQuotesArguments(t *testing.T) {
	_, s := newFakeHost(t)
	letters := []rune("a \"'\\%$\n\r\t;#=[]é-{}")
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		u := Unit{Name: "balancer", Args: []string{"/usr/local/bin/skyserve"}}
		for range r.IntN(4) {
			arg := make([]rune, r.IntN(8))
			for i := range arg {
				arg[i] = letters[r.IntN(len(letters))]
			}
			u.Args = append(u.Args, string(arg))
		}
		values, err := readUnit(s.unitText(u))
		if err != nil {
			t.Fatalf("seed %d: %q: %v", seed, u.Args, err)
		}
		args, err := argsOf(values["ExecStart"])
		if err != nil || !slices.Equal(args, u.Args) {
			t.Fatalf("seed %d: %q became %q (%v)", seed, u.Args, args, err)
		}
		if values["Restart"] != "always" || values["EnvironmentFile"] != s.envFile("balancer") || values["WorkingDirectory"] != s.Dir || values["WantedBy"] != "multi-user.target" {
			t.Fatalf("seed %d: %v", seed, values)
		}
	}
}

// systemd and Docker limit the memory of a unit.
func TestUnitMemoryLimits(t *testing.T) {
	_, s := newFakeHost(t)
	for _, c := range []struct {
		memory int64
		want   string
	}{{0, ""}, {2 << 30, "2147483648"}} {
		u := Unit{Name: "balancer", Args: []string{"/usr/local/bin/skyserve"}, Memory: c.memory}
		values, err := readUnit(s.unitText(u))
		if err != nil || values["MemoryMax"] != c.want {
			t.Errorf("%d bytes: MemoryMax is %q (%v), want %q", c.memory, values["MemoryMax"], err, c.want)
		}
		args := s.runArgs(Unit{Name: "engine", Image: "engine:1", Port: 8000, Memory: c.memory})
		if at := slices.Index(args, "--memory"); (at >= 0) != (c.want != "") || at >= 0 && args[at+1] != c.want {
			t.Errorf("%d bytes: docker %v", c.memory, args)
		}
	}
	if err := (Deployment{Units: []Unit{{Name: "balancer", Args: []string{"x"}, Memory: -1}}}).Check(); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("negative memory: %v", err)
	}
}

// Files with secrets are readable by root only.
func TestUnitFilePermissions(t *testing.T) {
	_, s := newFakeHost(t)
	u := Unit{Name: "balancer", Args: []string{"/bin/true"}, Secrets: map[string]string{"KEY": "hunter2"}}
	if _, err := s.Start(t.Context(), u, nil); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{s.envFile("balancer"): 0o600, s.startedFile("balancer"): 0o600, s.unitFile("balancer"): 0o644} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v (%v), want %v", path, info.Mode(), err, want)
		}
	}
}
