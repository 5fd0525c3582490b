package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
)

// withSockets is with for a command that listens at the sockets that systemd has opened for
// us, if it has (sd_listen_fds(3)), in place of all that flags and the configuration name.
// Children do not get them.
func (o *options) withSockets(f func(context.Context, *start, []net.Listener) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		sockets, err := activation.Listeners()
		if err != nil {
			return &runError{err}
		}
		if len(sockets) > 0 && (cmd.Flags().Changed("listen") || cmd.Flags().Changed("port")) {
			return errors.New("systemd has opened the sockets to listen at: leave out --listen and --port")
		}
		for i, l := range sockets {
			if l == nil {
				return &runError{fmt.Errorf("socket %d of systemd is not a listening socket: use ListenStream= and Accept=no", i+1)}
			}
			o.from.Listen = append(o.from.Listen, addressOf(l))
		}
		return o.with(func(ctx context.Context, s *start) error { return f(ctx, s, sockets) })(cmd, args)
	}
}

// addressOf writes where l listens as a configuration does.
func addressOf(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix://" + l.Addr().String()
	}
	return l.Addr().String()
}

// tellManager tells systemd a state of this process, if it wants to know (sd_notify(3)).
func tellManager(state string, log *slog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", "state", state, "err", err)
	}
}
