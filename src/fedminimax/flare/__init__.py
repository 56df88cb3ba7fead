"""A federation of real sites, carried by NVIDIA FLARE (extra ``federation``).

FLARE brings the kits with keys and certificates, mutual TLS, registration and reconnection. Of its jobs only the server's part
is used: the engine runs in a job on the server, and asks each site's FLARE client directly. A site runs no job process, so that
none can fail, and takes no code from the server; what it runs is what its administrator installed.

    server's job (engine, :class:`~fedminimax.flare.transport.FlareTransport`)
        -> FLARE server -> mutual TLS -> FLARE client of a site (:class:`~fedminimax.flare.site.Site`)
            -> unix socket -> the site's worker (data, JAX, state)
"""
