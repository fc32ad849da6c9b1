package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"skyserve/internal/identity"
)

// Publisher tells the fingerprint of a machine's key where an operator can read it, and
// where nobody can write but the machine itself and its cloud account.
type Publisher interface {
	Publish(ctx context.Context, name identity.Name, fingerprint string) error
}

// ConsoleLine is how a fingerprint stands in the text of a console.
func ConsoleLine(name identity.Name, fingerprint string) string {
	return fmt.Sprintf("skyserve: key of %s: %s\n", name, fingerprint)
}

var consoleLinePattern = regexp.MustCompile(`skyserve: key of (skyserve://\S+): ([a-z2-7]{52})\r?\n`)

// FindConsoleLine finds the fingerprint of a machine in the text of its console, the last one
// where there are several; false when it is not there yet.
func FindConsoleLine(console string, name identity.Name) (fingerprint string, found bool) {
	for _, m := range consoleLinePattern.FindAllStringSubmatch(console, -1) {
		if m[1] == name.String() {
			fingerprint, found = m[2], true
		}
	}
	return fingerprint, found
}

// Console publishes on the machine's console, which the cloud keeps: AWS gives it by
// GetConsoleOutput, Google by getSerialPortOutput. Only root can write there.
type Console struct{ Path string }

// Publish writes the line.
func (c Console) Publish(_ context.Context, name identity.Name, fingerprint string) error {
	f, err := os.OpenFile(c.Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// The boot messages around it do not end where a line does.
	_, err = f.WriteString("\n" + ConsoleLine(name, fingerprint))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// GuestAttributes publishes as a guest attribute of a machine at Google, which the
// machine alone can write. The instance's metadata must have enable-guest-attributes.
type GuestAttributes struct {
	// Base is the metadata server's URL; empty = Google's.
	Base string
}

// GuestAttributePath is where the fingerprint stands: namespace and key.
const GuestAttributePath = "skyserve/fingerprint"

// Publish writes the attribute.
func (g GuestAttributes) Publish(ctx context.Context, _ identity.Name, fingerprint string) error {
	_, err := requestMetadata(ctx, http.MethodPut, orBase(g.Base, gcpMetadata)+"/computeMetadata/v1/instance/guest-attributes/"+GuestAttributePath, gcpHeader, fingerprint)
	return err
}

// The metadata servers of the clouds, by address: names could be made to mean others.
const (
	gcpMetadata = "http://169.254.169.254"
	awsMetadata = "http://169.254.169.254"
)

var gcpHeader = http.Header{"Metadata-Flavor": {"Google"}}

func orBase(base, usual string) string {
	if base == "" {
		return usual
	}
	return strings.TrimRight(base, "/")
}

// metadataClient asks the cloud from inside a machine: never through a proxy.
var metadataClient = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// metadataError is an answer that is no success.
type metadataError struct {
	path   string
	status int
}

func (e *metadataError) Error() string { return fmt.Sprintf("asking %s: %d", e.path, e.status) }

// requestMetadata asks a metadata server.
func requestMetadata(ctx context.Context, method, url string, header http.Header, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return "", err
	}
	req.Header = header.Clone()
	resp, err := metadataClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = &metadataError{req.URL.Path, resp.StatusCode}
	}
	return string(text), err
}
