package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// clientTLS returns what the files say, nil for none.
func clientTLS(files config.TLS) (*tls.Config, error) {
	if files == (config.TLS{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.RootCAs, err = readCA(files.CA); err != nil {
		return nil, err
	}
	c.Certificates, err = readCertificate(files)
	return c, err
}

// serverTLS returns a listener's side: with a CA it demands certificates of
// clients.
func serverTLS(files config.TLS) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.ClientCAs, err = readCA(files.CA); err != nil {
		return nil, err
	}
	c.Certificates, err = readCertificate(files)
	return c, err
}

func readCA(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := readPEM(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: %w", file, errNoCertificate)
	}
	return pool, nil
}

func readCertificate(files config.TLS) ([]tls.Certificate, error) {
	if files.Cert == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	return []tls.Certificate{cert}, nil
}

var errEmpty = errors.New("is empty")

// readPEM reads a file, if one is named, that must hold something.
func readPEM(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	if err == nil && len(text) == 0 {
		err = errEmpty
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return text, nil
}
