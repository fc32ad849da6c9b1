package main

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
	"skyserve/provision/local"
)

// dirIdentity is the subdirectory of a service's directory with its operator's keys.
const dirIdentity = "identity"

// identityOf returns the identity of this machine's operator of a service.
func identityOf(svc local.Service) identity.Home {
	return identity.Home{Dir: filepath.Join(svc.Dir(), dirIdentity)}
}

// adminsFile is the file in which connect stores the admin URLs of a service.
func adminsFile(svc local.Service) string { return filepath.Join(svc.Dir(), local.FileAdmins) }

// adminHTTP returns the HTTP client for an admin API. It uses mTLS if the URL is https and this
// machine's operator has a certificate of the service, otherwise the token of the environment.
func adminHTTP(name, url string) (*http.Client, error) {
	byToken := telemetry.HTTPClient(os.Getenv(local.EnvAdminToken))
	if !strings.HasPrefix(url, "https://") {
		return byToken, nil
	}
	home, err := local.OpenHome()
	if err != nil {
		return nil, err
	}
	svc, err := home.Find(name)
	var none *local.NoServiceError
	if errors.As(err, &none) {
		return byToken, nil
	}
	if err != nil {
		return nil, usage(err, "pass --service NAME")
	}
	self, err := identityOf(svc).OperatorParty(operatorName(), time.Now())
	if errors.Is(err, fs.ErrNotExist) {
		return byToken, nil
	}
	if err != nil {
		return nil, err
	}
	return telemetry.SecureClient(self.Client(identity.Balancer)), nil
}

// invalidNameChars matches characters that a certificate's name cannot contain.
var invalidNameChars = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// operatorName returns the name of this machine's operator in certificates: user@host.
func operatorName() string {
	name, host := "operator", "machine"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	clean := func(s string) string { return strings.Trim(invalidNameChars.ReplaceAllString(s, "-"), "-.") }
	full := clean(name) + "@" + clean(host)
	return strings.TrimLeft(full[:min(len(full), 128)], "_@-.")
}
