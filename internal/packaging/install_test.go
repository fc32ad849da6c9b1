package packaging_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const script = "../../install.sh"

// fakeProgram is the binary of a release: it prints a version.
const fakeProgram = "#!/bin/sh\necho skyserve version v9.9.9\n"

// archive returns a release's archive with a binary.
func archive(t *testing.T, program string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range [][2]string{{"README.md", "text"}, {"skyserve", program}} {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o755, Size: int64(len(f[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The install script installs what the release's checksums name, for this system, or changes nothing and says why.
func TestInstallScript(t *testing.T) {
	good := archive(t, fakeProgram)
	sum := func(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
	line := func(platform string) string {
		return sum(good) + "  skyserve_9.9.9_" + platform + ".tar.gz\n"
	}
	const linux = "/skyserve_9.9.9_linux_amd64.tar.gz"
	files := func(changed map[string]string) map[string]string {
		all := map[string]string{
			"/checksums.txt": line("darwin_amd64") + line("darwin_arm64") + line("linux_amd64") + line("linux_arm64") + sum(good) + "  skyserve_9.9.9_amd64.deb\n",
			linux:            string(good), "/skyserve_9.9.9_darwin_arm64.tar.gz": string(good), "/skyserve_9.9.9_linux_arm64.tar.gz": string(good),
		}
		for name, text := range changed {
			all[name] = text
		}
		return all
	}
	for _, c := range []struct {
		name, system string // what uname prints for -s and -m
		files        map[string]string
		url          string // in place of the release's
		want         string // a part of the error; empty = it is installed
	}{
		{name: "linux amd64", system: "Linux x86_64", files: files(nil)},
		{name: "linux arm64", system: "Linux aarch64", files: files(nil)},
		{name: "a Mac", system: "Darwin arm64", files: files(nil)},
		{name: "wrong checksum", system: "Linux x86_64", files: files(map[string]string{linux: string(archive(t, fakeProgram+"# changed\n"))}), want: "want " + sum(good) + ": nothing was installed"},
		{name: "incomplete archive", system: "Linux x86_64", files: files(map[string]string{linux: string(good[:len(good)/2])}), want: "nothing was installed"},
		{name: "missing archive", system: "Linux x86_64", files: map[string]string{"/checksums.txt": line("linux_amd64")}, want: "_linux_amd64.tar.gz failed"},
		{name: "no checksums", system: "Linux x86_64", files: map[string]string{linux: string(good)}, want: "checksums.txt failed"},
		{name: "a page in place of checksums", system: "Linux x86_64", files: files(map[string]string{"/checksums.txt": "<html>not found</html>"}), want: "lists no archive for linux_amd64"},
		{name: "two releases", system: "Linux x86_64", files: files(map[string]string{"/checksums.txt": line("linux_amd64") + strings.Replace(line("linux_amd64"), "9.9.9", "9.9.8", 1)}), want: "lists several archives"},
		{name: "a path in a name", system: "Linux x86_64", files: files(map[string]string{"/checksums.txt": strings.Replace(line("linux_amd64"), "9.9.9", "../9", 1)}), want: "lists no archive"},
		{name: "a binary that does not run", system: "Linux x86_64", files: func() map[string]string {
			bad := archive(t, "#!/bin/sh\nexit 1\n")
			return map[string]string{"/checksums.txt": sum(bad) + "  skyserve_9.9.9_linux_amd64.tar.gz\n", linux: string(bad)}
		}(), want: "does not run here"},
		{name: "another system", system: "FreeBSD amd64", files: files(nil), want: "no binary for FreeBSD"},
		{name: "another processor", system: "Linux riscv64", files: files(nil), want: "no binary for riscv64"},
		{name: "no URL", system: "Linux x86_64", url: "-", want: "SKYSERVE_RELEASE_URL is not set"},
		{name: "clear text", system: "Linux x86_64", url: "http://example.com/release", want: "must be https:// or file://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, ok := c.files[r.URL.Path]
				if !ok {
					http.NotFound(w, r)
					return
				}
				_, _ = w.Write([]byte(text))
			}))
			defer server.Close()
			url := server.URL + "/"
			if c.url != "" {
				url = strings.TrimPrefix(c.url, "-")
			}
			system, machine, _ := strings.Cut(c.system, " ")
			stubs, into := t.TempDir(), filepath.Join(t.TempDir(), "bin")
			uname := fmt.Sprintf("#!/bin/sh\ncase $1 in -s) echo %s ;; -m) echo %s ;; esac\n", system, machine)
			if err := os.WriteFile(filepath.Join(stubs, "uname"), []byte(uname), 0o700); err != nil { //nolint:gosec // it is run
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "sh", script)
			cmd.Env = append(os.Environ(), "PATH="+stubs+":"+os.Getenv("PATH"), "SKYSERVE_RELEASE_URL="+url, "SKYSERVE_INSTALL_DIR="+into)
			out, err := cmd.CombinedOutput()
			installed, _ := os.ReadFile(filepath.Join(into, "skyserve"))
			if c.want == "" {
				if err != nil || string(installed) != fakeProgram || !strings.Contains(string(out), "skyserve version v9.9.9") {
					t.Errorf("%v, installed %d bytes:\n%s", err, len(installed), out)
				}
				return
			}
			if err == nil || len(installed) != 0 || !strings.Contains(string(out), c.want) || !strings.Contains(string(out), "error: ") {
				t.Errorf("%v, installed %d bytes, want %q:\n%s", err, len(installed), c.want, out)
			}
		})
	}
}

// A download of the script that was cut off runs nothing.
func TestIncompleteInstallScriptDoesNothing(t *testing.T) {
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"\nmain() {", "\tdownload \"$url/$archive\"", "\nmain\n"} {
		cut, _, found := strings.Cut(string(text), end)
		if !found {
			t.Fatalf("the script has no %q", end)
		}
		into := filepath.Join(t.TempDir(), "bin")
		cmd := exec.CommandContext(t.Context(), "sh")
		cmd.Stdin = strings.NewReader(cut)
		cmd.Env = append(os.Environ(), "SKYSERVE_RELEASE_URL=file:///", "SKYSERVE_INSTALL_DIR="+into)
		out, _ := cmd.CombinedOutput() // the shell may report the missing end
		if _, err := os.Stat(into); err == nil || strings.Contains(string(out), "downloading") {
			t.Errorf("cut before %q, it ran:\n%s", end, out)
		}
	}
}
